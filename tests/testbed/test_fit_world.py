"""A world is learnt from a log whose true world is known."""

import numpy as np
import pytest

from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.fit_world import TooShortError, fit_world, never_ordered
from fedagent_testbed.study import load_recipe, make_world
from fedagent_testbed.study.history import History
from fedagent_testbed.study.selection import SelectionStudy
from fedagent_testbed.worlds.learnt import Learnt

ROUNDS, SEED = 150, 3
SETS = ("clients=20", f"rounds.count={ROUNDS}", "exploration=0.5", "exploration_bound=100")


def learnt(*sets: str, rounds: int = ROUNDS) -> tuple[Learnt, SelectionStudy]:
    study = SelectionStudy(load_recipe("cocs-decisions", (*SETS, *sets)), "random", SEED)
    study.log = []
    history = History("random", SEED)
    for t in range(1, rounds + 1):
        study.play_round(t, history)
    return fit_world(study.log), study


def truths(tape: Learnt, *sets: str) -> tuple[FloatArray, FloatArray]:
    """Return the true and the learnt chance of all pairs of some later rounds."""
    world = make_world(load_recipe("cocs-decisions", (*SETS, *sets)), SEED)
    true, found = [], []
    for t in range(1, ROUNDS + 1):
        view = world.view(t)
        assert view.truth is not None
        if t > ROUNDS - 20:
            true.append(view.truth.chance)
            found.append(tape.chance(view))
    return np.concatenate(true), np.concatenate(found)


@pytest.mark.parametrize("sets", [(), ("bad_edge.fails=0.5",), ("radio.features=live",)], ids=str)
def test_chances_are_those_of_the_true_world(sets: tuple[str, ...]) -> None:
    tape, study = learnt(*sets)
    assert study.log is not None
    ordered = {int(c) for one in study.log for c in one.view.pair_client[one.selection.pairs]}
    assert never_ordered(tape) == 20 - len(ordered) > 0
    true, found = truths(tape, *sets)
    assert abs(true.mean() - found.mean()) < 0.05
    assert np.corrcoef(true, found)[0, 1] > 0.85


def test_what_goes_wrong_together_is_found_and_nothing_else() -> None:
    alone, _ = learnt()
    edge, _ = learnt("bad_edge.fails=0.5")
    flips, _ = learnt("flips.every=20", "flips.loss=0.9")
    assert alone.together[0] < 0.05
    assert edge.together[0] > 0.15
    assert edge.together[1] < 0.1
    assert flips.together[1] > 0.2
    assert flips.together[2] > 0.5


def test_prices_and_views_are_kept_to_the_bit() -> None:
    tape, study = learnt(rounds=40)
    assert study.log is not None
    for at, one in enumerate(study.log):
        pairs = slice(int(tape.start[at]), int(tape.start[at + 1]))
        assert tape.pair_client[pairs].tobytes() == one.view.pair_client.tobytes()
        kept = [tape.names.index(name) for name in one.view.feature_names]
        assert np.array_equal(tape.features[pairs][:, kept], one.view.pair_features, equal_nan=True)
        assert tape.price[at].tolist() == one.view.client_price.tolist()


def test_a_short_run_is_refused() -> None:
    with pytest.raises(TooShortError, match="29 settled rounds"):
        learnt(rounds=29)
