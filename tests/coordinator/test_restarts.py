"""A coordinator that dies and goes on: what it calls and learns is what it would have."""

from pathlib import Path

import pytest

from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.answers import RESTART
from fedagent_task.errors import RecipeError
from tests.fakes.coordinator_site import Site, check_books, recipe, toy_edges

ROUNDS = 4
OPINIONS = ("policy.name=quick-init-ucb", "policy.params.clients_per_round=2")
PEERS = ("policy.name=volunteers", "opinions.mode=peers", "peers.best=2")


def played(site: Site) -> tuple[str, Books]:
    site.run()
    assert site.kills == bool(site.kill_at)
    check_books(site, site.recipe.rounds.count)
    store = Books(site.folder)
    return store.read.run().run_id, store


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
        feedbacks = [one.feedback for one in store.read.logged(run) if one.feedback is not None]
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
