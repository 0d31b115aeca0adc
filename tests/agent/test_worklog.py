"""What the agent's log says: a person sees that the device works, and no journal is flooded."""

from fedagent_agent.core.worklog import LINE_S, LogLine, WorkLog
from fedagent_node.effects import Emit
from tests.fakes.hand_edge import EDGE, LINK, RUN

JOINED = Emit("edge_joined", {"edge": EDGE, "name": "hall", "address": "10.0.0.5:1883"})
TASK = f"digits (run {RUN[:8]})"


def training(number: int, run: str = RUN) -> Emit:
    return Emit("training", {"round": number, "edge": EDGE, "run": run, "recipe": "digits"})


def update(number: int, lc_ms: int = 310) -> Emit:
    return Emit("update", {"round": number, "edge": EDGE, "lc_ms": lc_ms, "num_samples": 50})


def receipt(number: int, status: str = "accepted", reason: str = "") -> Emit:
    return Emit("receipt", {"round": number, "edge": EDGE, "status": status, "reason": reason})


def declined(number: int, why: str, detail: str) -> Emit:
    return Emit("declined", {"round": number, "edge": EDGE, "reason": why, "detail": detail})


def play(log: WorkLog, events: list[tuple[float, Emit]]) -> list[LogLine]:
    """Tell the events at their times."""
    return [line for at, event in events for line in log.lines_for(event, at)]


def rounds(count: int, every_s: float) -> list[tuple[float, Emit]]:
    return [
        pair
        for i in range(count)
        for pair in (
            (i * every_s, training(i + 1)),
            (i * every_s + 0.4 * every_s, update(i + 1)),
            (i * every_s + 0.5 * every_s, receipt(i + 1)),
        )
    ]


def test_a_round_is_one_line_in_plain_words() -> None:
    lines = play(WorkLog(), [(0.0, JOINED), *rounds(1, 60.0)])
    assert [line.text for line in lines] == [
        "joined edge hall at 10.0.0.5:1883",
        f"round 1 of {TASK} at hall: trained 0.31 s on 50 samples, in time",
    ]


def test_no_round_is_untold_and_no_minute_has_many_lines() -> None:
    """At any pace: every round has a line or is counted in one, at most a line in five seconds."""
    for every_s in (0.05, 3.0, 9.0):
        count = 200
        lines = play(WorkLog(), [*rounds(count, every_s), (1e6, training(0)), (1e6, receipt(0))])
        counted = [line.text.split("; ")[1] for line in lines if " more rounds" in line.text]
        assert len(lines) - 1 + sum(int(text.split()[0]) for text in counted) == count
        assert len(lines) <= 2 + count * every_s / LINE_S
        assert every_s < LINE_S or len(lines) == count + 1, "slow rounds are told one by one"


def test_work_that_a_later_round_goes_on_with_is_one_line_at_its_end() -> None:
    log = WorkLog()
    later = Emit("update", {**update(3).fields, "made_in": 2})
    (line,) = play(
        log, [(0, JOINED), (1, training(2)), (2, update(2)), (3, later), (9, receipt(3))]
    )[1:]
    assert line.text == (
        f"round 2 of {TASK} at hall: trained 0.31 s on 50 samples, gone on with in round 3, in time"
    )
    given_up = Emit("abandoned", {"round": 4, "edge": EDGE, "reason": "give_up"})
    (line,) = play(log, [(20, given_up)])
    assert line.text == "round 4 at hall: unfinished: the round ended first"


def test_a_lasting_reason_to_decline_is_one_warning() -> None:
    log = WorkLog()
    why = "schema", "stream: has 12 features; the task wants 64"
    lines = play(log, [(30.0 * i, declined(i, *why)) for i in range(4)])
    assert [line.loud for line in lines] == [True, False, False, False]
    assert lines[0].text == f"declined round 0: {why[0]}: {why[1]}"
    assert log.lines_for(declined(5, "unavailable", "battery"), 200.0)[0].loud
    fast = play(WorkLog(), [(0.01 * i, declined(i, "busy", "newer")) for i in range(1000)])
    assert len(fast) <= 3


def test_a_device_that_may_not_train_says_so_once() -> None:
    log = WorkLog()
    assert log.allow("") == []
    assert log.allow("12 % of charge") == [LogLine("does not train: 12 % of charge", loud=True)]
    assert log.allow("11 % of charge") == []
    assert log.allow("") == [LogLine("may train again")]


def test_what_a_peer_says_stays_on_one_line() -> None:
    bad = Emit("edge_joined", {"edge": EDGE, "name": "hall\n\x1b[31mroot", "address": LINK})
    (line,) = WorkLog().lines_for(bad, 0.0)
    assert line.text.isprintable()
    (line,) = WorkLog().lines_for(declined(1, "error", "a\nb\x1b[2J"), 0.0)
    assert line.text.isprintable()
