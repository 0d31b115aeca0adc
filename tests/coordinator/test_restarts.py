"""A coordinator that dies and goes on: what it calls, rents and learns is what it would have."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.store import Store
from fedagent_coordinator.core.answers import RESTART
from fedagent_coordinator.run_settings import decision_policies
from fedagent_protocol import messages as m
from fedagent_task.errors import RecipeError
from tests.fakes.coordinator_site import Site, recipe, toy_edges

from .test_run_store import check_history

ROUNDS = 4
OPINIONS = ("policy.name=quick-init-ucb", "policy.params.clients_per_round=2")
PEERS = ("policy.name=volunteers", "opinions.mode=peers", "peers.best=2")


def played(site: Site) -> tuple[str, Store]:
    """Play to the end; check that what was learnt is what would be restored."""
    site.run()
    assert site.kills == bool(site.kill_at)
    lived = site.store.learning.state()
    check_history(site, site.recipe.rounds.count)
    store = Store(site.folder)
    run, restored = store.read.run().run_id, decision_policies(site.recipe)
    store.read.restore(run, restored)
    again = restored.state()
    assert again.keys() == lived.keys()
    for name, value in lived.items():
        assert np.array_equal(value, again[name], equal_nan=value.dtype.kind == "f")
    return run, store


@pytest.mark.parametrize(
    ("point", "hit", "lost"),
    [("settled", 1, [1]), ("evaluating", 1, []), ("evaluating", 2, [1]), ("evaluated", 2, [])],
)
def test_a_model_that_a_coordinator_died_over_has_no_opinions(
    tmp_path: Path, point: str, hit: int, lost: list[int]
) -> None:
    """But for the model that the run begins with: nothing was settled yet."""
    given = recipe(*OPINIONS)
    run, store = played(Site(tmp_path, given, toy_edges(given, 2), kill_at=point, kill_hit=hit))
    with store:
        evaluated = store.read.evaluations.rows(run)
        rounds = [row.round for row in store.read.rounds(run) if row.state == "done"]
    assert [one.round for one in evaluated] == [0, *rounds]
    assert [one.slot for one in evaluated] == list(range(1, ROUNDS + 2))
    assert [one.round for one in evaluated if RESTART in one.reasons] == lost
    assert sum(one.answered for one in evaluated) == 6 * (ROUNDS + 1 - len(lost))


@pytest.mark.parametrize("point", ["settled", "evaluated"])
def test_calls_keep_their_rhythm_over_a_restart(tmp_path: Path, point: str) -> None:
    given = recipe("opinions.every=2", "opinions.mode=report")
    run, store = played(Site(tmp_path, given, toy_edges(given), kill_at=point, kill_hit=2))
    with store:
        done = [row.round for row in store.read.rounds(run) if row.state == "done"]
        evaluated = [one.round for one in store.read.evaluations.rows(run)]
    assert evaluated == [0, *done[1::2]]


@pytest.mark.parametrize(
    ("slot", "every", "merge_every", "refused"),
    [(3, 2, 1, True), (2, 1, 2, True), (2, 2, 1, False)],
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
    run, store = played(site)
    with store:
        feedbacks = [one for one, _ in store.read.settled(run)]
    assert all(found.opinions is not None for found in feedbacks[slot - 1 :: slot])


@pytest.mark.parametrize("slot", [1, 3])
def test_a_call_that_was_owed_for_a_lost_merge_comes_with_the_next(
    tmp_path: Path, slot: int
) -> None:
    given = recipe(*PEERS, f"peers.slot_rounds={slot}", "rounds.count=8")
    run, store = played(Site(tmp_path, given, toy_edges(given), kill_at="settled", kill_hit=slot))
    with store:
        rounds = [one.round for one in store.read.evaluations.rows(run)]
    assert rounds == [0, *range(slot + 1, 8, slot)]


def test_who_brings_nothing_is_passed_over_after_a_kill_too(tmp_path: Path) -> None:
    sets = "rounds.count=14", "rounds.merge_every=1", "budget.total=1000"
    given, found = recipe(*sets, "placement.name=min-cost"), []
    for kill_at in ("", "learnt"):
        edges = toy_edges(given, 3)
        for edge, rent in zip(edges, (1, 300_000, 200_000), strict=True):
            edge.rent = rent
        for agent in edges[0].agents:
            status = m.OutcomeStatus.MISSED
            agent.outcome = m.Outcome(agent=agent.id, status=status, censored=True, tau_ms=1)
        site = Site(tmp_path / f"data{kill_at}", given, edges, kill_at=kill_at, kill_hit=5)
        site.run()
        assert (site.done, site.kills) == ("rounds", bool(kill_at))
        site.close()
        with Store(site.folder) as store:
            assert store.read.ledger.verify(full=True).problems == ()
            rounds = store.read.rounds(store.read.run().run_id)
        rows = [row for row in rounds if row.state == "done"]
        found.append([(row.rented, row.rent_micro) for row in rows])
    assert found[0] == found[1]
    assert [micro for edge, micro in found[0] if edge == "edge-0"] == [0] * 5
