"""The coordinator dies at every crash point and goes on; money and history stay whole."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator import policies
from fedagent_coordinator.core.decision_policies import DecisionPolicies
from fedagent_coordinator.database.learning import settled
from fedagent_coordinator.errors import RunConflictError
from fedagent_coordinator.runs import RunFinishedError
from fedagent_coordinator.store import Store
from fedagent_protocol import messages as m

from .harness import RECIPE, Site, recipe, toy_edges

ONCE = ["ending", "reported-result", "end.before-commit", "end.committed"]
POINTS = [
    "decided",
    "reserve.entries",
    "reserve.before-commit",
    "reserve.committed",
    "reserve.marked",
    "reserved",
    "orders.half",
    "reported",
    "settling",
    "settle.first-entry",
    "settle.before-commit",
    "settle.committed",
    "settle.marked",
    "settled",
    "learnt",
    "merged",
    "model.before-commit",
    "model.committed",
    "committed",
    *ONCE,
]


def check_history(site: Site, rounds: int) -> None:
    """Assert that the books balance, and that each round ended exactly once."""
    site.close()
    with Store(site.folder) as store:
        report = store.read.ledger.verify()
        assert report.balanced, report.problems
        run = store.read.run()
        states = [row.state for row in store.read.rounds(run.run_id)]
        assert states.count("done") == rounds
        assert set(states) <= {"done", "void"}
        assert [row.round for row in store.read.rounds(run.run_id)] == list(
            range(1, len(states) + 1)
        )
        balance = store.read.balance(run.run_id)
        assert balance.reserved_micro == 0
        paid = sum(outcome.paid_micro for outcome in store.read.outcomes(run.run_id))
        assert paid == balance.settled_micro == report.settled_micro
        assert run.ended_ms is not None
        check_policy(site, store, run.run_id)


def check_policy(site: Site, store: Store, run_id: str) -> None:
    """Assert that what is restored is what every feedback teaches, bit for bit."""
    spec = site.recipe.policy
    restored = policies.create(spec.name, **spec.params)
    store.restore(run_id, spec.name, DecisionPolicies(restored))
    replayed = policies.create(spec.name, **spec.params)
    for feedback, _ in settled(store._db.connection, run_id):
        replayed.learn(feedback)
    one, other = restored.state(), replayed.state()
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert np.array_equal(value, other[name], equal_nan=value.dtype.kind == "f")


def test_a_run_from_its_begin_to_its_report(tmp_path: Path) -> None:
    given = recipe()
    site = Site(tmp_path, given, toy_edges(given))
    site.run()
    assert site.done == "rounds"
    names = [event.name for event in site.events]
    assert names.count("round") == 4
    assert names.count("model") == 4
    assert names[-1] == "end"
    end = site.events[-1].fields
    assert end["rounds_done"] == 4
    assert end["ledger_balanced"] is True
    assert isinstance(end["accuracy"], float)
    assert (tmp_path / "result.json").exists()
    timing = next(event for event in site.events if event.name == "round").fields["timing_ms"]
    assert isinstance(timing, dict)
    assert timing.keys() == {"observe", "decide", "reserve", "train", "settle", "merge"}
    check_history(site, 4)


@pytest.mark.parametrize("edges", [1, 2])
@pytest.mark.parametrize(
    ("point", "hit"), [(p, hit) for p in POINTS for hit in (1, 2) if hit == 1 or p not in ONCE]
)
def test_a_kill_at_every_point(tmp_path: Path, point: str, hit: int, edges: int) -> None:
    given = recipe("policy.name=cocs-paper") if hit == 2 else recipe()
    site = Site(tmp_path, given, toy_edges(given, edges), kill_at=point, kill_hit=hit)
    try:
        site.run()
    except RunFinishedError:
        # It died after the end was written: the next start says so.
        assert point == "end.committed"
    assert site.kills == 1
    check_history(site, 4)
    if point != "end.committed":
        assert site.done == "rounds"


@pytest.mark.parametrize("point", ["reserved", "orders.half", "reported", "settling"])
def test_what_was_in_flight_is_voided_once_and_its_late_report_expires(
    tmp_path: Path, point: str
) -> None:
    given = recipe()
    site = Site(tmp_path, given, toy_edges(given), kill_at=point, kill_hit=2)
    site.run()
    check_history(site, 4)
    with Store(tmp_path) as store:
        run = store.read.run()
        voided = [row.round for row in store.read.rounds(run.run_id) if row.state == "void"]
        assert voided == [2]
    if point == "reported":
        # The edge had done the round that the restart voided.
        assert (2, True) in site.edges[0].receipts


def test_edges_go_on_from_what_the_books_know_of_them(tmp_path: Path) -> None:
    given = recipe("rounds.merge_every=4")
    site = Site(tmp_path, given, toy_edges(given, 2), kill_at="settled", kill_hit=3)
    site.run()
    check_history(site, 4)
    offers = [send for send in site.sent if isinstance(send.message, m.GlobalModel)]
    # One for each edge at the begin, and the merged one at the end: none was reset.
    assert len(offers) == 4


def test_the_same_recipe_resumes_another_is_refused_and_an_ended_one_says_so(
    tmp_path: Path,
) -> None:
    given = recipe()
    site = Site(tmp_path, given, toy_edges(given))
    store = site.open()
    first = store.run.run_id
    assert not store.run.resumed
    site.close()
    assert site.open().run.resumed
    assert site.store.run.run_id == first
    site.close()
    other = Site(tmp_path, recipe("seed=6"), toy_edges(given))
    with pytest.raises(RunConflictError, match="--new-run"):
        other.open()
    other.new_run = True
    assert other.open().run.run_id != first
    other.close()
    fresh = Site(tmp_path, given, toy_edges(given), new_run=True)
    fresh.kernel.now += 60.0
    fresh.run()
    assert fresh.done == "rounds"
    fresh.close()
    with pytest.raises(RunFinishedError, match="4 rounds"):
        Site(tmp_path, given, toy_edges(given)).open()


def test_the_recipe_of_these_tests_trains_the_bundled_digits() -> None:
    assert "digits-test" in RECIPE
