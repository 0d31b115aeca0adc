"""Recorded runs, decided again: the same policy bit for bit, others by what both chose."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator import policies
from fedagent_coordinator.books.learning import Logged
from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.reader import Reader, open_reader
from fedagent_coordinator.books.store import Store
from fedagent_coordinator.errors import UnknownRoundError
from fedagent_coordinator.explanation.explain import explain
from fedagent_coordinator.policies.base import TRUTH
from fedagent_coordinator.run_settings import decision_policies
from fedagent_node.data_dir import load_or_create
from fedagent_testbed.replay import Replayed, matched, replay
from fedagent_testbed.study import load_recipe
from fedagent_testbed.study.full import play_full
from tests.fakes.stored_runs import begun, play, small_plan, small_view
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
        found = again(reader)
        assert len(found) == reader.last_round(reader.run().run_id)
    assert all(one.same for one in found)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(name, marks=() if name in EACH_TIME else pytest.mark.nightly)
        for name in policies.names()
        if TRUTH not in policies.create(name).needs
    ],
)
def test_a_study_is_reproduced_bit_for_bit(policy: str, tmp_path: Path) -> None:
    own = ('policies.bp-ucb={ graph = "declared" }',) if policy == "bp-ucb" else ()
    sets = ("world.clients=6", "rounds.count=7", *EXPLORES, *own)
    play_full(load_recipe("cocs-decisions", sets), policy, 3, tmp_path)
    with open_reader(tmp_path / "coordinator") as reader:
        found = again(reader)
        run = reader.run().run_id
        devices = reader.devices(run)
        for n, one in enumerate(found):
            said = explain(reader, devices[n % len(devices)].agent, one.round.view.round)
            assert said.solved, "it is decided as it was"
            view, selection = reader.plan(run, one.round.view.round)
            assert selection.pairs.tobytes() == one.round.selection.pairs.tobytes()
            assert one.round.free_micro == reader.free_before(run, view.round)
    assert found
    assert all(one.same for one in found)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[Logged]:
    folder = tmp_path_factory.mktemp("log")
    sets = ("world.clients=8", "rounds.count=12", *EXPLORES)
    play_full(load_recipe("cocs-decisions", sets), "random", 3, folder)
    with open_reader(folder / "coordinator") as reader:
        return list(reader.logged(reader.run().run_id))


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


def test_the_cost_of_a_round_is_known_of_its_own_set_only(log: list[Logged]) -> None:
    its = log[0].feedback
    assert its is not None
    feedback = replace(its, psi=2.0)
    rows = np.arange(len(its.view.pair_client))
    assert matched(feedback, rows, its.view, its.pairs) is feedback
    assert matched(feedback, rows, its.view, its.pairs[::-1]).psi == 2.0
    assert matched(feedback, rows, its.view, its.pairs[:-1]).psi is None


def test_a_pruned_run_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        run_id = begun(store).run_id
        for number in range(1, 21):
            play(store, run_id, small_plan(small_view(number, [1])), {0})
            store.snapshot(run_id, number, {})
        assert store.prune(run_id, keep_rounds=1, most=1000, by="operator").rounds
    with open_reader(tmp_path) as reader, pytest.raises(UnknownRoundError):
        list(reader.logged(run_id))
