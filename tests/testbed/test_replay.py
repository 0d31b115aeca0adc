"""Recorded runs, decided again: the same policy bit for bit, others by what both chose."""

from pathlib import Path

import pytest

from fedagent_coordinator import policies
from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.read import Logged, Reader, open_reader
from fedagent_coordinator.explanation.explain import explain
from fedagent_coordinator.policies.base import OPINIONS, TRUTH, VOLUNTEERS
from fedagent_coordinator.run_settings import decision_policies
from fedagent_testbed.replay import Replayed, replay
from fedagent_testbed.study import load_recipe, make_policy
from fedagent_testbed.study.history import History
from fedagent_testbed.study.selection import SelectionStudy
from tests.world.kinds import SETS, world

EACH_TIME = ("adaptive", "bp-ucb", "cocs", "rbcs-f")
EXPLORES = ("policy.exploration=0.4", "policy.exploration_bound=100")


def again(reader: Reader) -> list[Replayed]:
    run = reader.run()
    recipe = recipe_in(run.recipe)
    assert recipe is not None
    policy = decision_policies(recipe).policy
    rounds = reader.logged(run.run_id)
    return list(replay(rounds, policy, seed=recipe.seed, spec=recipe.policy))


@pytest.mark.parametrize("kind", SETS)
def test_a_run_of_the_whole_federation_is_reproduced_bit_for_bit(kind: str, tmp_path: Path) -> None:
    here = world(kind, tmp_path, 5, "policy.exploration=0.3", "policy.exploration_bound=10")
    here.run(seconds=900)
    with open_reader(here.coordinator.directory) as reader:
        found, run = again(reader), reader.run().run_id
        assert len(found) == reader.last_round(run)
        devices = reader.devices(run)
        for n, one in enumerate(found):
            said = explain(reader, devices[n % len(devices)].agent, one.round.view.round)
            assert said.solved, "it is decided as it was"
            view, selection = reader.plan(run, one.round.view.round)
            assert selection.pairs.tobytes() == one.round.selection.pairs.tobytes()
            assert one.round.free_micro == reader.free_before(run, view.round)
    assert all(one.same for one in found)


def logged(policy: str, *sets: str) -> list[Logged]:
    """Return what a study's policy decided and learnt."""
    recipe = load_recipe("cocs-decisions", (*sets, *EXPLORES))
    study, history = SelectionStudy(recipe, policy, 3), History(policy, 3)
    study.log = []
    for t in range(1, recipe.rounds.count + 1):
        study.play_round(t, history)
    return study.log


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(name, marks=() if name in EACH_TIME else pytest.mark.nightly)
        for name in policies.names()
        if not policies.create(name).needs & {TRUTH, OPINIONS, VOLUNTEERS}
    ],
)
def test_a_study_is_reproduced_bit_for_bit(policy: str) -> None:
    recipe = load_recipe("cocs-decisions", EXPLORES)
    log = logged(policy, "world.clients=6", "rounds.count=7")
    found = list(replay(log, make_policy(recipe, policy), seed=3, spec=recipe.policy))
    assert found
    assert all(one.same for one in found)


@pytest.fixture(scope="module")
def log() -> list[Logged]:
    return logged("random", "world.clients=8", "rounds.count=12")


def test_another_policy_learns_of_pairs_that_both_chose_and_of_no_others(
    log: list[Logged],
) -> None:
    policy = policies.create("ucb")
    told = []
    learn = policy.learn
    policy.learn = lambda feedback: (told.append(feedback), learn(feedback))[1]  # type: ignore[method-assign,func-returns-value] # what it is told is kept
    found = list(replay(log, policy, seed=1))
    assert any(not one.same for one in found)
    for one, lesson in zip(found, told, strict=True):
        its = one.round.feedback
        assert its is not None
        assert set(lesson.pairs.tolist()) == set(one.pairs) & set(its.pairs.tolist())
        at = [its.pairs.tolist().index(pair) for pair in lesson.pairs.tolist()]
        assert lesson.X.tolist() == its.X[at].tolist()
        assert lesson.tau_s.tolist() == its.tau_s[at].tolist()
