"""The whole federation under a study's links: what it decides, how rounds end, what it pays.

Rounds are compared with the rule of `outcome` on the same drawn times. An edge may wait a
twentieth of a second for agents that need no model, and every message takes a moment.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedagent_agent.core.device import Readings
from fedagent_coordinator import policies
from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.policies import (
    Feedback,
    Purpose,
    RoundView,
    Selection,
    SelectionPolicy,
    round_rng,
)
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import ModelSpec
from fedagent_testbed.kernel import Pipes
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import World, load_recipe, make_world, play
from fedagent_testbed.study.full import FullRun, StudyAir, index, play_full
from fedagent_testbed.worlds import LinkedWorld, Times, outcome

SLACK_S = 0.08
SMALL = ("world.clients=6", "world.edges=2", "budget.per_edge=6", "rounds.count=12")
ROUNDS = 12


def small(*sets: str) -> Study:
    return load_recipe("cocs-decisions", (*SMALL, *sets))


Fetched = set[tuple[int, str, str]]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Fetched:
    """Round, agent and edge of the models that were sent for, in whole or in part."""
    found, transfer_s = Fetched(), StudyAir.transfer_s

    def noted(air: StudyAir, agent: str, edge: str, *, up: bool) -> float:
        if not up:
            found.add((air.view.round, agent, edge))
        return transfer_s(air, agent, edge, up=up)

    monkeypatch.setattr(StudyAir, "transfer_s", noted)
    return found


def expected(
    recipe: Study, run: FullRun, fetched: Fetched
) -> dict[int, tuple[Feedback, list[str]]]:
    """Return how the rule ends the rounds that were ordered, and who stands in which row."""
    world, found = make_world(recipe, 4), {}
    assert isinstance(world, LinkedWorld)
    for t in range(1, ROUNDS + 1):
        view, rows = world.view(t), [row for row in run.outcomes if row.round == t]
        times = world.times
        assert times is not None
        at = {pair: k for k, pair in enumerate(zip(view.pair_client, view.pair_edge, strict=True))}
        pairs = np.array([at[index(r.agent), index(r.edge_id)] for r in rows], dtype=np.int64)
        dt_s = times.dt_s.copy()
        for row, pair in zip(rows, pairs.tolist(), strict=True):
            if (t, row.agent, row.edge_id) not in fetched:
                dt_s[pair] = 0.0
        limits = recipe.rounds
        feedback = outcome(
            view,
            pairs,
            Times(dt_s, times.lc_s, times.ut_s),
            min_updates=limits.min_updates,
            max_wait_s=limits.max_wait_s,
        )
        found[t] = feedback, [row.agent for row in rows]
    return found


def unsure(recipe: Study, feedback: Feedback) -> np.ndarray:
    """Return bool[S]: pairs at edges where some update came close to a limit."""
    limits = recipe.rounds
    close = np.zeros(len(feedback.pairs), dtype=np.bool_)
    for limit in (limits.deadline_s, limits.max_wait_s):
        close |= (feedback.tau_s <= limit) & (feedback.tau_s > limit - SLACK_S) & feedback.X
        close |= (feedback.tau_s < limit) & (feedback.tau_s > limit - SLACK_S) & ~feedback.censored
    edge = feedback.view.pair_edge[feedback.pairs]
    return np.isin(edge, edge[close])


@dataclass
class Spy:
    """What the last policy that was made saw, selected and learnt."""

    policy: SelectionPolicy | None = None
    seen: list[tuple[RoundView, Selection]] = field(default_factory=list)
    learnt: list[Feedback] = field(default_factory=list)

    def made(self, policy: SelectionPolicy) -> SelectionPolicy:
        self.policy, self.seen, self.learnt = policy, [], []
        select, learn = policy.select, policy.learn

        def selected(view: RoundView, rng: np.random.Generator) -> Selection:
            self.seen.append((view, select(view, rng)))
            return self.seen[-1][1]

        def learnt(feedback: Feedback) -> None:
            self.learnt.append(feedback)
            learn(feedback)

        policy.select, policy.learn = selected, learnt  # type: ignore[method-assign] # of this one
        return policy


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    spy, create = Spy(), policies.create
    monkeypatch.setattr(
        "fedagent_coordinator.policies.create",
        lambda name, **parameters: spy.made(create(name, **parameters)),
    )
    return spy


@pytest.mark.parametrize(
    ("policy", "sets"),
    [
        ("cheapest", ()),
        ("random", ("rounds.min_updates=2", "world.radio.noise_dbm_hz=-160", "budget.per_edge=4")),
        ("linucb", ("world.radio.noise_dbm_hz=-160", "rounds.merge_every=3")),
        ("adaptive", ("world.visible=1", "world.liars.share=0.3")),
    ],
)
def test_a_live_run_decides_ends_and_pays_as_the_study_says(
    tmp_path: Path, spy: Spy, fetched: Fetched, policy: str, sets: tuple[str, ...]
) -> None:
    recipe = small(*sets)
    run = play_full(recipe, policy, 4, tmp_path)
    assert run.ending.reason == "rounds"
    decides_as_the_policy(run, spy, policy, make_world(recipe, 4))
    with open_reader(tmp_path / "coordinator") as read:
        edges = read.edge_results(read.run().run_id)
    kept = {(row.round, row.edge_id) for row in edges if row.failed}
    ends_by_the_rule(recipe, run, expected(recipe, run, fetched), kept)
    pays_what_it_reserved(recipe, run)


def decides_as_the_policy(run: FullRun, spy: Spy, policy: str, world: World) -> None:
    assert len(spy.seen) == len(spy.learnt) == ROUNDS
    seen, learnt, again = spy.seen, spy.learnt, policies.create(policy)
    for t, ((view, selection), feedback) in enumerate(zip(seen, learnt, strict=True), start=1):
        assert described(view) == described(world.view(t))
        same = again.select(view, round_rng(4, t, Purpose.SELECT))
        assert same.pairs.tolist() == selection.pairs.tolist()
        assert feedback.pairs.tolist() == selection.pairs.tolist()
        again.learn(feedback)
    assert run.history["selected"].tolist() == [len(s.pairs) for _, s in seen]


def ends_by_the_rule(
    recipe: Study,
    run: FullRun,
    rounds: dict[int, tuple[Feedback, list[str]]],
    kept: set[tuple[int, str]],
) -> None:
    rows, sure = {(row.round, row.agent): row for row in run.outcomes}, 0
    for t, (feedback, agents) in rounds.items():
        for k, agent in enumerate(agents):
            if unsure(recipe, feedback)[k]:
                continue
            row, sure = rows[t, agent], sure + 1
            assert row.in_time == feedback.X[k], row
            assert row.censored == feedback.censored[k], row
            assert bool(row.paid_micro) == (not feedback.void[k]), row
            if (t, row.edge_id) not in kept:
                assert row.used == feedback.used[k], row
            assert 0 <= row.tau_s - feedback.tau_s[k] < SLACK_S, row
            if not row.censored:
                assert row.lc_s == pytest.approx(feedback.lc_s[k], abs=0.002)
    assert sure > 0.8 * len(run.outcomes) > 0
    assert {row.in_time for row in run.outcomes} == {True, False}


def pays_what_it_reserved(recipe: Study, run: FullRun) -> None:
    assert run.ending.balanced, run.ending.problems
    reserved: dict[tuple[int, str], int] = defaultdict(int)
    prices = make_world(recipe, 4).view(1).client_price
    for row in run.outcomes:
        reserved[row.round, row.edge_id] += row.price_micro
        assert row.paid_micro == row.price_micro * (row.status in {"arrived", "late"})
        assert row.round > 1 or row.price_micro == prices[index(row.agent)]
    assert max(reserved.values()) <= recipe.budget_micro
    assert run.ending.spent_micro == sum(row.paid_micro for row in run.outcomes)
    assert run.history["spent"].sum() * 1e6 == pytest.approx(run.ending.spent_micro)
    clients = [(row.round, row.agent) for row in run.outcomes]
    assert len(set(clients)) == len(clients), "somebody trained twice in a round"


def described(view: RoundView) -> list[tuple[object, ...]]:
    """Return features and price of every pair, whatever the indices."""
    prices = view.client_price[view.pair_client]
    assert view.feature_names == ("bandwidth_hz", "compute", "distance_km", "download_bps")
    return sorted(
        (*features, price)
        for features, price in zip(view.pair_features.tolist(), prices.tolist(), strict=True)
    )


@pytest.mark.parametrize("policy", ["cheapest", "linucb"])
def test_where_nothing_is_tied_the_study_is_the_live_run(tmp_path: Path, policy: str) -> None:
    recipe = small("world.visible=1", "world.edges=2", "world.radio.noise_dbm_hz=-170")
    live = play_full(recipe, policy, 3, tmp_path).history
    fast = play(recipe, policy, 3)
    assert live["selected"].tolist() == fast["selected"].tolist()
    assert live["wins"].tolist() == fast["wins"].tolist()
    assert live["spent"] == pytest.approx(fast["spent"])
    assert live.counts.tolist() == fast.counts[: len(live.counts)].tolist()
    assert (live["seconds"] - fast["seconds"] >= 0).all()
    assert (live["seconds"] - fast["seconds"] < SLACK_S).all()
    assert 0 < live["wins"].sum() < live["selected"].sum()


@pytest.mark.parametrize("policy", ["random", "ucb", "volunteers"])
def test_a_seed_is_a_run_in_every_message(tmp_path: Path, policy: str) -> None:
    recipe = small("rounds.count=5", "world.training.slot_rounds=2")
    runs = [play_full(recipe, policy, seed, tmp_path / str(k)) for k, seed in enumerate((1, 1, 2))]
    assert runs[0].digest == runs[1].digest != runs[2].digest
    assert runs[0].outcomes == runs[1].outcomes != runs[2].outcomes
    assert runs[0].ending == runs[1].ending
    one, two = runs[0].history, runs[1].history
    assert one.counts.tolist() == two.counts.tolist()
    for name in ("wins", "selected", "spent", "seconds"):
        assert one[name].tolist() == two[name].tolist()


def test_models_in_chunks_take_as_long_as_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Alone: a broadcast goes at the pace of the slower of its receivers.
    recipe = small("rounds.max_wait_s=60", "world.clients=1", "world.edges=1", "rounds.count=3")
    large = ModelSpec(kind="softmax", features=1000, classes=2)
    monkeypatch.setattr("fedagent_testbed.study.full._MODEL", large)
    whole = play_full(recipe, "cheapest", 1, tmp_path / "whole")
    monkeypatch.setattr("fedagent_testbed.study.full._CHUNK_BYTES", 1024)
    parts = play_full(recipe, "cheapest", 1, tmp_path / "parts")
    assert len(whole.outcomes) == 3
    for one, two in zip(whole.outcomes, parts.outcomes, strict=True):
        assert not one.censored
        assert two.tau_s == pytest.approx(one.tau_s, abs=SLACK_S)


@pytest.mark.parametrize("policy", ["quick-init-ucb", "ucb"])
def test_opinions_are_asked_for_at_the_end_of_each_slot(
    tmp_path: Path, spy: Spy, policy: str
) -> None:
    slots = ("rounds.merge_every=2", "world.training.slot_rounds=4")
    recipe = small(*slots, f"policies.{policy}.clients_per_round=2")
    run = play_full(recipe, policy, 3, tmp_path)
    assert [number for number, _ in run.ending.evaluated] == [0, 4, 8, 12]
    # A link can be too slow for the model to come before the call is over.
    assert 3 * 6 < sum(answers for _, answers in run.ending.evaluated) <= 4 * 6
    assert np.flatnonzero(np.isfinite(run.history["opinion"])).tolist() == [3, 7, 11]
    learnt = [feedback.view.round for feedback in spy.learnt if feedback.opinions is not None]
    assert learnt == [4, 8, 12]
    for view, _ in spy.seen:
        assert view.opinions is not None
        assert np.isfinite(view.opinions[view.pair_client]).all()
    sets = [frozenset(selection.pairs.tolist()) for _, selection in spy.seen]
    assert len(set(sets)) > 1


@pytest.mark.parametrize("policy", ["ucb", "volunteers"])
def test_slots_need_not_be_multiples_of_the_recipes_merges(tmp_path: Path, policy: str) -> None:
    slots = ("rounds.merge_every=2", "world.training.slot_rounds=3", "world.edges=1")
    run = play_full(small(*slots, "rounds.count=7"), policy, 1, tmp_path)
    assert [number for number, _ in run.ending.evaluated] == [0, 3, 6]


def test_neighbours_decide_who_trains_in_a_slot(tmp_path: Path) -> None:
    sets = (
        "rounds.merge_every=2",
        "world.training.slot_rounds=4",
        "world.edges=1",
        "world.visible=0",
    )
    recipe = small(*sets, "policies.volunteers.clients_per_round=2", "budget.per_edge=100")
    run = play_full(recipe, "volunteers", 3, tmp_path)
    assert run.ending.balanced, run.ending.problems
    calls = [number for number, _ in run.ending.evaluated]
    assert calls == [0, 4, 8]
    assert {answers for _, answers in run.ending.evaluated} == {2}
    for call in calls:
        slot = [row for row in run.outcomes if call < row.round <= call + 4]
        # One who is still busy with the round before is left out of the next.
        assert len({row.agent for row in slot}) == 2
        assert len(slot) > 4


@pytest.mark.parametrize(
    ("sets", "policy", "words"),
    [
        (("world.churn.share=0.1",), "random", r"^world\.churn\.share: replaces agents"),
        (("world.kind=open", "world.edges=1"), "random", r"^world\.kind: is open"),
        (
            ("world.flips.every=3",),
            "random",
            r"^world\.flips\.every: is not played .* leave out --full",
        ),
        (("world.bad_edge.fails=0.1",), "random", r"^world\.bad_edge\.fails: is not played"),
        ((), "oracle", "^policy: oracle needs what no live coordinator"),
    ],
)
def test_what_cannot_be_live_is_said(
    tmp_path: Path, sets: tuple[str, ...], policy: str, words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        play_full(small(*sets), policy, 1, tmp_path)


class Slow:
    """Surroundings in which a whole model takes ten seconds, and an update four."""

    def begin(self, round_: int) -> bool:
        return round_ > 1

    def device(self, agent: str) -> Readings:
        return Readings()

    def features(self, agent: str, edge: str) -> dict[str, float]:
        return {agent: 1.0, edge: 2.0}

    def transfer_s(self, agent: str, edge: str, *, up: bool) -> float:
        return 4.0 if up else 10.0


def test_a_pipe_carries_one_thing_after_the_other() -> None:
    pipes = Pipes(Slow())
    pipes.note("model", 1000)

    def down(nbytes: int, now: float) -> float:
        return pipes.carry("a", "e", "model", nbytes, now, up=False)

    assert down(500, 100.0) == 5.0
    assert down(250, 101.0) == 6.5
    assert down(250, 200.0) == 2.5
    assert pipes.carry("a", "e", "update", 7, 200.0, up=True) == 4.0
    assert pipes.carry("b", "e", "model", 1000, 200.0, up=False) == 10.0
    assert pipes.carry("a", "e", "update", 0, 200.0, up=True) == 0.0
    assert pipes.busy("a", "e", 203.9, up=True)
    assert not pipes.busy("a", "e", 204.0, up=True)
    pipes.clear()
    assert not pipes.busy("b", "e", 201.0, up=False)
