"""What `fedagent status` is told: who is where, what is waited for, and what a run came to."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

from fedagent_coordinator.picture import status_files
from fedagent_coordinator.picture.status_files import (
    GAP_S,
    TOUCH_S,
    Device,
    DeviceBook,
    Known,
    RunStatus,
    Word,
)
from fedagent_coordinator.picture.summary import conclusion
from fedagent_protocol.messages import DeviceNote, EdgeStatus
from tests.fakes.coordinator_site import Site, recipe, toy_edges
from tests.fakes.engine_field import settings
from tests.fakes.toy_edge import declined

RUN, EPOCH, NEXT = "1" * 32, "e" * 32, "f" * 32


def status(*devices: DeviceNote, epoch: str = EPOCH, run: str = RUN) -> EdgeStatus:
    return EdgeStatus(run=run, epoch=epoch, devices=devices)


def known(folder: Path) -> dict[str, Device]:
    found = Known.read(folder)
    assert found is not None
    return found.devices


def test_a_device_comes_moves_and_leaves(tmp_path: Path) -> None:
    book = DeviceBook(tmp_path, RUN)
    book.note("hall", status(DeviceNote(agent="a", software="f 1", address="10.0.0.9")), 1000)
    book.note("yard", status(DeviceNote(agent="a", software="f 1", address="10.0.0.9")), 2000)
    book.write(0.0)
    (here,) = known(tmp_path).values()
    assert (here.seen_ms, here.edges) == (2000, ["hall", "yard"])
    assert here.word == Word(seen_ms=2000, here=True, software="f 1", address="10.0.0.9")
    book.note("hall", status(DeviceNote(agent="a", here=False, age_ms=1500, reason="no")), 9000)
    book.lose("yard", 9500)
    book.close(9999)
    (gone,) = known(tmp_path).values()
    assert (gone.seen_ms, gone.edges) == (9500, [])
    assert gone.words["hall"] == Word(seen_ms=7500, reason="no")


def test_an_edge_that_starts_again_has_nobody_until_it_says_so(tmp_path: Path) -> None:
    book = DeviceBook(tmp_path, RUN)
    book.note("hall", status(DeviceNote(agent="a"), DeviceNote(agent="b")), 1000)
    book.note("hall", status(DeviceNote(agent="b"), epoch=NEXT), 5000)
    book.write(0.0)
    assert {agent: one.edges for agent, one in known(tmp_path).items()} == {"a": [], "b": ["hall"]}
    book.note("hall", status(DeviceNote(agent="c"), run="2" * 32), 6000)
    assert "c" not in book.known.devices, "of another run"


def test_it_is_written_when_something_changed_and_not_at_once_again(tmp_path: Path) -> None:
    book = DeviceBook(tmp_path, RUN)
    for second in range(100):
        book.note("hall", status(), 1000)
        book.write(float(second))
    assert not (tmp_path / Known.FILE).exists(), "a heartbeat is no news"
    for i in range(50):
        book.note("hall", status(DeviceNote(agent=f"agent-{i}")), 1000)
        book.write(200.0 + i * GAP_S / 100)
    assert len(known(tmp_path)) == 1
    later = 200.0 + 2 * GAP_S
    book.write(later)
    assert len(known(tmp_path)) == 50
    os.utime(tmp_path / Known.FILE, (1, 1))
    book.write(later + TOUCH_S / 2)
    assert (tmp_path / Known.FILE).stat().st_mtime == 1
    book.write(later + TOUCH_S + 1)
    assert (tmp_path / Known.FILE).stat().st_mtime > 1, "whoever is online was so until then"


def test_what_was_known_stays_known_over_a_restart(tmp_path: Path) -> None:
    book = DeviceBook(tmp_path, RUN)
    book.note("hall", status(DeviceNote(agent="a", address="10.0.0.9")), 1000)
    book.write(0.0)
    again = DeviceBook(tmp_path, RUN)
    word = Word(seen_ms=1000, address="10.0.0.9")
    assert again.known.devices == {"a": Device(words={"hall": word})}
    assert DeviceBook(tmp_path, "2" * 32).known.devices == {}, "of another run"
    (tmp_path / Known.FILE).write_text("{")
    assert DeviceBook(tmp_path, RUN).known.devices == {}
    (tmp_path / Known.FILE).unlink()
    (tmp_path / Known.FILE).mkdir()
    book.note("hall", status(DeviceNote(agent="b")), 2000)
    book.write(100.0)  # nobody's business


def test_hostile_words_are_cut_and_printable(tmp_path: Path) -> None:
    book = DeviceBook(tmp_path, RUN)
    bad = DeviceNote(agent="a", software="\x1b[2J", address="a\nb", reason="\x1b]0;" * 30)
    book.note("hall", status(bad), 1000)
    word = book.known.devices["a"].word
    assert all(text.isprintable() for text in (word.software, word.address, word.reason))


def test_no_edge_speaks_for_another_and_it_is_said_who_speaks(tmp_path: Path) -> None:
    """An edge gone bad tells last, and what it tells stands beside what the others tell."""
    book = DeviceBook(tmp_path, RUN)
    book.note("hall", status(DeviceNote(agent="a", software="f 1", address="10.0.0.9")), 1000)
    book.worked("hall", ("a", "nobody"))
    book.note("ghost", status(DeviceNote(agent="a", address="6.6.6.6", reason="it lies")), 2000)
    device = book.known.devices["a"]
    assert (device.by, device.word.address, device.reason({})) == ("hall", "10.0.0.9", "")
    book.note("hall", status(DeviceNote(agent="a", reason="12 % of charge")), 3000)
    assert device.reason({"hall": "the hall"}) == "12 % of charge (reported by edge the hall)"
    book.lose("hall", 4000)
    assert device.reason({}) == "it lies (reported by edge ghost)", (
        "the only edge where it is, they say"
    )
    book.lose("ghost", 5000)
    assert (device.by, device.edges) == ("hall", [])


def test_what_an_edge_invents_pushes_out_its_own_words_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_files, "MAX_OF_EDGE", 20)
    book = DeviceBook(tmp_path, RUN)
    book.note("hall", status(*(DeviceNote(agent=f"hall-{i}") for i in range(8))), 1000)
    for flood in range(10):
        invented = (DeviceNote(agent=f"no-{flood}-{i}") for i in range(10))
        book.note("ghost", status(*invented), 2000 + flood)
    told = [edge for one in book.known.devices.values() for edge in one.words]
    assert (told.count("hall"), told.count("ghost")) == (8, 20)
    assert "no-9-9" in book.known.devices
    book.close(9999)
    again = DeviceBook(tmp_path, RUN)
    assert len(again.known.devices) == 28
    again.note("hall", status(DeviceNote(agent="hall-1")), 9999)
    again.keep(frozenset({"hall-1"}), frozenset({"hall-1"}), 9999)
    assert again.known.devices.keys() == {"hall-1"}


def test_edges_are_known_before_the_first_round_and_counted_while_they_live(tmp_path: Path) -> None:
    given = recipe()
    site = Site(tmp_path, given, toy_edges(given, 2))
    for edge in site.edges:
        for agent in edge.agents:
            agent.available = False
    site.run(until=3.0)
    run = site.store.run.run_id
    assert RunStatus.read(tmp_path) == RunStatus(run=run, edges_live=2, waiting="agents", wanted=6)
    assert set(site.store.database.read.edges(run)) == {"edge-0", "edge-1"}
    site.edges[1].mute = True
    site.kernel.run(until=site.kernel.now + 20.0)
    found = RunStatus.read(tmp_path)
    assert found is not None
    assert (found.edges_live, found.silent) == (1, ("edge-1",))
    book = Known.read(tmp_path)
    assert book is not None
    here = {agent: one.edges for agent, one in book.devices.items() if one.edges}
    assert here == {agent.id: ["edge-0"] for agent in site.edges[0].agents}
    assert len(book.devices) == 2 * len(here), "those of the other edge are known and away"
    site.close()


def test_those_that_decline_are_named_until_a_round_begins(tmp_path: Path) -> None:
    given = recipe("rounds.count=30")
    site = Site(tmp_path, given, toy_edges(given, agents=1))
    agent = site.edges[0].agents[0]
    agent.outcome = declined(agent.id, "no_data")
    site.run(until=1.0)
    found = RunStatus.read(tmp_path)
    assert found is not None
    assert (found.waiting, found.detail) == ("declined", "no_data")
    agent.outcome = None
    site.kernel.run(until=site.kernel.now + 6.0)
    found = RunStatus.read(tmp_path)
    assert found is not None
    assert found.waiting == ""
    site.close()


def test_the_schedule_is_kept_over_a_restart(tmp_path: Path) -> None:
    given = recipe("rounds.count=4", "rounds.every_s=20")
    site = Site(tmp_path, given, toy_edges(given), kill_at="settled", kill_hit=2)
    site.run()
    assert (site.kills, site.done) == (1, "rounds")
    rows = site.store.database.read.rounds(site.store.run.run_id)
    begun = [row.opened_ms for row in rows]
    site.close()
    assert len(begun) == 4
    # Neither at once nor after another whole wait; the clock of the harness has 50 ms.
    assert all(20_000 <= later - one <= 20_300 for one, later in pairwise(begun))
    found = RunStatus.read(tmp_path)
    assert found is not None
    assert abs(1000 * found.next_at - begun[-1] - 20_000) < 300


def test_what_is_no_such_file_is_nothing(tmp_path: Path) -> None:
    assert RunStatus.read(tmp_path) is None
    (tmp_path / "run_status.json").write_text("{")
    assert RunStatus.read(tmp_path) is None


@pytest.mark.parametrize(
    ("placed", "rent_micro", "what"),
    [(True, 5, "rented round"), (True, 0, "round"), (False, 0, "update")],
)
def test_the_line_says_what_the_budget_does_not_pay(
    what: str, rent_micro: int, *, placed: bool
) -> None:
    said = settings(placed=placed).recipe
    line = conclusion("budget", said, spent_micro=7, rents=rent_micro > 0, done=4, model="ab")
    assert (
        line == f"the budget is too low for another {what}: stopped after 4 rounds, final model ab"
    )


@pytest.mark.parametrize(
    ("total", "left"),
    [(None, "2.5 credits are spent"), (10_000_000, "7.5 of 10 credits are left")],
)
def test_a_reached_target_says_what_is_left_of_the_budget(total: int | None, left: str) -> None:
    changed = settings(total_micro=total).recipe
    wanted = structs.replace(changed.evaluation, dataset="digits-test", target=0.5)
    said = structs.replace(changed, evaluation=wanted)
    line = conclusion("target", said, spent_micro=2_500_000, rents=False, done=4, model="ab")
    assert line.startswith(f"error 0.5, the target, is reached, {left}: stopped after 4 rounds")
    assert not conclusion("rounds", said, spent_micro=5, rents=True, done=4, model="ab")
