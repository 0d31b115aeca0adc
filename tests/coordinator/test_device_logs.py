"""Requests for a device's events are files that the coordinator takes, and so are the answers."""

import os
import time
from pathlib import Path

from fedagent_coordinator.core.effects import AskLog, KeepLog
from fedagent_coordinator.device_logs import FOLDER, KEPT_S, _taken, ask_log, keep_log, kept_log
from fedagent_node.effects import Send
from fedagent_protocol.messages import LogEntry, LogNeed, LogTail
from tests.fakes.engine_field import Field, settings, toy_edges


def test_a_request_is_taken_once_and_its_answer_read_once(tmp_path: Path) -> None:
    number = ask_log(tmp_path, "kitchen", 1000)
    other = ask_log(tmp_path, "kitchen", 20)
    place = tmp_path / FOLDER
    assert place.stat().st_mode & 0o777 == 0o700
    asked = {one.number: one for one in _taken(place)}
    assert asked == {
        number: AskLog("kitchen", number, 200),
        other: AskLog("kitchen", other, 20),
    }, "two people may ask at once"
    assert _taken(place) == []
    assert kept_log(tmp_path, "kitchen", number) is None
    tail = LogTail(agent="kitchen", number=number, entries=(LogEntry(name="ordered"),))
    keep_log(tmp_path, tail)
    assert kept_log(tmp_path, "kitchen", other) is None, "an answer to somebody else"
    assert _taken(place) == []
    assert kept_log(tmp_path, "kitchen", number) == tail
    assert list(place.iterdir()) == []


def test_what_is_no_request_does_no_harm_and_an_answer_that_nobody_fetches_goes(
    tmp_path: Path,
) -> None:
    assert _taken(tmp_path / FOLDER) == [], "nobody has asked yet"
    number = ask_log(tmp_path, "kitchen", 20)
    place = tmp_path / FOLDER
    good = (place / f"{number}.ask").read_bytes()
    (place / "1.ask").write_bytes(b"{")
    (place / "2.ask").write_bytes(good.replace(b"kitchen", b"NOT AN ID"))
    (place / "3.ask").write_bytes(bytes(2 << 20))
    (place / "x.ask").write_bytes(good)
    (place / "folder.ask").mkdir()
    os.mkfifo(place / "pipe.ask")
    (place / "link.ask").symlink_to("/dev/zero")
    assert _taken(place) == [AskLog("kitchen", number, 20)]
    assert {one.name for one in place.iterdir()} == {"folder.ask", "pipe.ask", "link.ask"}
    (place / "7.json").write_bytes(b"{")
    assert kept_log(tmp_path, "kitchen", 7) is None
    os.utime(place / "7.json", (time.time() - KEPT_S - 1,) * 2)
    assert _taken(place) == []
    assert not (place / "7.json").exists()


def test_the_engine_asks_every_edge_and_takes_an_answer_that_was_asked_for_once() -> None:
    field = Field(toy_edges(2), settings(count=1, wait_edges=2, wait_agents=6))
    field.run()
    engine = field.engine
    effects = engine.receive(AskLog("edge-0-a0", 7, 20), 1.0)
    sends = [(one.to, one.message) for one in effects if isinstance(one, Send)]
    assert [to for to, _ in sends] == ["edge-0", "edge-1"]
    for _, message in sends:
        assert isinstance(message, LogNeed)
        assert (message.agent, message.number, message.last) == ("edge-0-a0", 7, 20)
        assert message.run == engine.settings.run
    tail = LogTail(run=engine.settings.run, agent="edge-0-a0", number=7)
    other = LogTail(run=engine.settings.run, agent="edge-0-a1", number=7)
    assert field.hear("edge-1", other) == []
    assert field.hear("edge-0", tail) == [KeepLog(tail)]
    assert field.hear("edge-0", tail) == []
    assert engine.counters["log_unasked"] == 2
