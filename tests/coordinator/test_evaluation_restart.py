"""A coordinator dies around an evaluation and goes on: what is restored is what was learnt."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator import run_store
from fedagent_coordinator.books.evaluations import ModelEvaluation
from fedagent_coordinator.books.learning import settled
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.books.store import Store
from fedagent_coordinator.core.answers import RESTART
from fedagent_coordinator.policies.base import State
from fedagent_coordinator.run_settings import decision_policies
from fedagent_task.errors import RecipeError
from tests.fakes.coordinator_site import Site, recipe, toy_edges

from .test_run_store import check_history

BEFORE = [
    "settled",
    "merged",
    "model.committed",
    "committed",
    "evaluating",
    "evaluate.before-commit",
]
AFTER = ["evaluate.committed", "evaluate.marked", "evaluated", "learnt"]
ROUNDS = 4
OPINIONS = ("policy.name=quick-init-ucb", "policy.params.clients_per_round=2")
PEERS = ("policy.name=volunteers", "opinions.mode=peers", "peers.best=2")


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(value, other[name], equal_nan=value.dtype.kind == "f")
        for name, value in one.items()
    )


def played(site: Site) -> tuple[RunRow, list[ModelEvaluation], Store]:
    """Play to the end; check that what was learnt is what would be restored."""
    site.run()
    lived = site.store.learning.state()
    check_history(site, ROUNDS)
    store = Store(site.folder)
    run = store.read.run()
    restored = decision_policies(site.recipe)
    store.restore(run.run_id, restored)
    assert same(restored.state(), lived)
    return run, store.read.evaluations.rows(run.run_id), store


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_a_kill_around_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, hit: int
) -> None:
    monkeypatch.setattr(run_store, "SNAPSHOT_EVERY", hit)
    given = recipe(*OPINIONS)
    site = Site(tmp_path, given, toy_edges(given, 2), kill_at=point, kill_hit=hit)
    run, evaluated, store = played(site)
    with store:
        assert site.kills == 1
        rounds = [row.round for row in store.read.rounds(run.run_id) if row.state == "done"]
        assert [one.round for one in evaluated] == [0, *rounds]
        assert [one.slot for one in evaluated] == list(range(1, ROUNDS + 2))
        lost = [one.round for one in evaluated if RESTART in one.reasons]
        # The model that the run begins with is evaluated again: nothing was settled yet.
        first = hit if point in {"settled", "merged", "model.committed", "committed"} else hit - 1
        # The first model is committed before the run begins, so its point comes once more.
        first -= point == "model.committed"
        assert lost == ([first] if point in BEFORE and first else [])
        assert sum(one.answered for one in evaluated) == 6 * (ROUNDS + 1 - len(lost))


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("point", ["settled", "committed", "evaluated"])
@pytest.mark.parametrize("hit", [2])
def test_calls_keep_their_rhythm_over_a_restart(
    tmp_path: Path, every: int, point: str, hit: int
) -> None:
    given = recipe(f"opinions.every={every}", "opinions.mode=report")
    site = Site(tmp_path, given, toy_edges(given), kill_at=point, kill_hit=hit)
    run, evaluated, store = played(site)
    with store:
        done = [row.round for row in store.read.rounds(run.run_id) if row.state == "done"]
        assert [one.round for one in evaluated] == [0, *done[every - 1 :: every]]


@pytest.mark.parametrize(
    ("slot", "every", "merge_every", "refused"),
    [
        (3, 2, 1, True),
        (2, 1, 2, True),
        (2, 2, 1, False),
        (2, 1, 1, False),
    ],
)
def test_slots_that_may_end_without_an_opinion_are_refused(
    tmp_path: Path, slot: int, every: int, merge_every: int, *, refused: bool
) -> None:
    slots = f"policy.params.slot_rounds={slot}", f"opinions.every={every}"
    given = recipe(*OPINIONS, *slots, f"rounds.merge_every={merge_every}")
    site = Site(tmp_path, given, toy_edges(given), kill_at="reserved", kill_hit=2)
    if refused:
        with pytest.raises(RecipeError, match=rf"\.every = {slot} and rounds\.merge_every = 1"):
            site.open()
        return
    # A voided round in the middle of a slot, and still every slot ends with an opinion.
    _, _, store = played(site)
    with store:
        assert site.kills == 1
        feedbacks = [one for one, _ in settled(store._db.connection, store.read.run().run_id)]
        ends = feedbacks[slot - 1 :: slot]
        assert all(found.opinions is not None for found in ends)


@pytest.mark.parametrize("slot", [1, 2, 3])
def test_a_call_that_was_owed_for_a_lost_merge_comes_with_the_next(
    tmp_path: Path, slot: int
) -> None:
    given = recipe(*PEERS, f"peers.slot_rounds={slot}", "rounds.count=8")
    site = Site(tmp_path, given, toy_edges(given), kill_at="settled", kill_hit=slot)
    site.run()
    site.close()
    with Store(tmp_path) as store:
        rounds = [one.round for one in store.read.evaluations.rows(store.read.run().run_id)]
    assert rounds == [0, *range(slot + 1, 8, slot)]
