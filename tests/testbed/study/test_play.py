"""One policy through one world: repeatable, checked, and learning from feedback only."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from fedagent_coordinator.errors import InvalidSelectionError
from fedagent_coordinator.policies import Feedback, RoundView, Selection
from fedagent_coordinator.policies.selection import explained, fill
from fedagent_coordinator.policies.state import StatelessPolicy
from fedagent_task.errors import RecipeError
from fedagent_testbed import oracles
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.study import History, load_recipe, make_world, selection
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import play as played
from fedagent_testbed.study.history import jain
from fedagent_testbed.study.selection import unmet

SMALL = ("world.clients=12", "world.edges=2", "rounds.count=6")
DIGITS = (
    *("world.training.dataset=digits", "world.training.local_steps=2", "world.training.rate=0.1"),
    "world.training.samples_per_client=40",
)
GDA = (
    "world.training.slot_rounds=1",
    *(
        "world.training.dataset=digits",
        "world.training.samples_per_client=30",
        "world.training.epochs=1",
    ),
    *("rounds.count=5", "world.training.rate=0.05", "world.training.evaluate_every=2"),
)


def small(*sets: str) -> Study:
    return load_recipe("cocs-decisions", (*SMALL, *sets))


def same(one: History, two: History) -> None:
    for name in one.rows[0].keys() - {"decide_ms"}:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    np.testing.assert_array_equal(one.counts, two.counts)


@pytest.mark.parametrize("policy", [name for name in oracles.names() if name != "volunteers"])
def test_every_policy_plays_the_same_again(policy: str) -> None:
    sets = () if policy == "fixed" else ("world.churn.share=0.2", "world.churn.every=2")
    recipe = small(*sets)
    if reason := unmet(recipe, policy):
        recipe = load_recipe("gda-mnist", GDA)
        assert "opinions" in reason
    one = played(recipe, policy, 3)
    same(one, played(recipe, policy, 3))
    per_edge = recipe.budget.per_edge * recipe.world.edges
    assert (one["wins"] <= one["selected"]).all()
    assert (one["spent"] <= per_edge + 1e-9).all()
    assert one.counts.sum() == one["selected"].sum() > 0
    assert np.isfinite(one["decide_ms"]).all()


def test_training_on_digits_is_the_same_again_and_learns() -> None:
    recipe = small(
        *DIGITS, "rounds.count=30", "world.clients=20", "world.training.evaluate_every=10"
    )
    one = played(recipe, "cheapest", 1)
    same(one, played(recipe, "cheapest", 1))
    tested = np.flatnonzero(np.isfinite(one["accuracy"])) + 1
    assert tested.tolist() == [10, 20, 30]
    assert one["accuracy"][29] > 0.3
    assert one.first_at(0.0) == 10
    assert one.first_at(1.1) is None


class Spy(StatelessPolicy):
    """Take everybody; remember what was seen and learnt."""

    needs: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.views: list[RoundView] = []
        self.feedbacks: list[Feedback] = []

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        self.views.append(view)
        return explained(view, np.zeros(0, dtype=np.int64))

    def learn(self, feedback: Feedback) -> None:
        self.feedbacks.append(feedback)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    made = Spy()
    monkeypatch.setattr(selection, "make_policy", lambda _recipe, _name: made)
    return made


def test_nobody_sees_or_learns_the_truth(spy: Spy) -> None:
    history = played(small(), "spy", 1)
    assert [view.truth for view in spy.views] == [None] * 6
    assert [feedback.view.truth for feedback in spy.feedbacks] == [None] * 6
    assert [view.round for view in spy.views] == [1, 2, 3, 4, 5, 6]
    assert history["selected"].sum() == history["wins"].sum() == 0
    assert history["seconds"].tolist() == [0.0] * 6


class Cheat(Spy):
    """Order who arrives, if that is shown."""

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        super().select(view, rng)
        wins = view.truth.arrives if view.truth is not None else np.zeros(len(view.pair_client))
        return explained(view, np.flatnonzero(wins)[:1])


@pytest.mark.parametrize("needs", [frozenset[str](), frozenset({"truth"})])
def test_the_truth_is_for_those_who_say_that_they_need_it(
    needs: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cheat = Cheat()
    cheat.needs = needs
    monkeypatch.setattr(selection, "make_policy", lambda _recipe, _name: cheat)
    history = played(small("budget.per_edge=100"), "cheat", 1)
    assert history["wins"].sum() == (6 if needs else 0)
    assert [feedback.view.truth for feedback in cheat.feedbacks] == [None] * 6
    assert not selection.unusable(small("budget.per_edge=100"), "cheat")
    assert (cheat.views[-1].truth is not None) == bool(needs)


class Meddler(Spy):
    """Order everybody; write into all columns that are shown, and count the refusals."""

    refused = 0

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        self._write(view)
        self._write(view.truth)
        return explained(view, fill(view, np.arange(len(view.pair_client))))

    def learn(self, feedback: Feedback) -> None:
        self._write(feedback)
        self._write(feedback.view)

    def _write(self, record: object) -> None:
        for item in fields(record) if is_dataclass(record) else ():
            column = getattr(record, item.name)
            if isinstance(column, np.ndarray) and len(column):
                with pytest.raises(ValueError, match="read-only"):
                    column[:] = 1
                self.refused += 1


def test_nobody_changes_the_money_or_the_outcome_of_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meddler = Meddler()
    meddler.needs = frozenset({"truth"})
    monkeypatch.setattr(selection, "make_policy", lambda _recipe, _name: meddler)
    history = played(small(), "meddler", 1)
    assert (history["spent"] <= 2 * 3.5 + 1e-9).all()
    assert history["wins"].sum() < history["selected"].sum()
    assert meddler.refused > 6 * 20


class Fickle(Cheat):
    """Say that it needs nothing when first asked."""

    asked = 0

    @property
    def needs(self) -> frozenset[str]:
        self.asked += 1
        return frozenset({"truth"}) if self.asked > 1 else frozenset()

    @needs.setter
    def needs(self, _: frozenset[str]) -> None:
        """Change nothing."""


def test_what_a_policy_needs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "make_policy", lambda _recipe, _name: Fickle())
    assert played(small("budget.per_edge=100"), "fickle", 1)["wins"].sum() == 0


def test_a_pair_without_a_needed_feature_is_none(spy: Spy) -> None:
    spy.needs = frozenset({"compute", "download_bps"})
    history = played(small("world.missing.share=0.4"), "spy", 1)
    assert len(history) == 6
    for view, feedback in zip(spy.views, spy.feedbacks, strict=True):
        assert 0 < len(view.pair_client) < 24
        assert np.isfinite(view.feature("compute")).all()
        assert feedback.view.pair_features is view.pair_features


@pytest.mark.parametrize("policy", ["linucb", "cocs", "adaptive", "oracle"])
def test_missing_features_stop_nobody(policy: str) -> None:
    assert played(small("world.missing.share=0.4"), policy, 1)["wins"].sum() > 0


def test_opinions_are_of_those_who_are_there(spy: Spy) -> None:
    churn = ("world.kind=radio", "world.clients=10", "world.churn.share=0.3", "world.churn.every=1")
    history = played(load_recipe("gda-mnist", (*GDA, *churn)), "spy", 1)
    assert len(history.counts) == 10 + 4 * 3
    assert np.isfinite(history["opinion"]).all()
    for view in spy.views:
        assert view.opinions is not None
        assert np.isfinite(view.opinions).tolist() == view.client_available.tolist()
    assert len(np.unique(spy.views[-1].client_available)) == 2


def test_a_selection_that_breaks_a_rule_ends_the_run(
    spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        spy, "select", lambda view, _rng: explained(view, np.arange(len(view.pair_client)))
    )
    with pytest.raises(InvalidSelectionError):
        played(small(), "spy", 1)


@pytest.mark.parametrize(
    ("sets", "policy", "words"),
    [
        (SMALL, "bp-ucb", "opinions"),
        ((*SMALL, "world.training.opinions=true"), "bp-ucb", "opinions"),
        (SMALL, "fastest", ""),
        (("world.kind=open", "world.edges=1"), "linucb", "feature"),
    ],
)
def test_unmet_says_what_is_missing(sets: tuple[str, ...], policy: str, words: str) -> None:
    recipe = load_recipe("cocs-decisions", sets)
    reason = unmet(recipe, policy)
    assert words in reason
    assert bool(reason) == bool(words)
    if reason:
        with pytest.raises(RecipeError, match=words):
            played(recipe, policy, 1)


@pytest.mark.parametrize(("name", "sets"), [("rbcs-f-numeric", ()), ("gda-mnist", GDA)])
def test_half_a_credit_pays_for_nobody_and_every_client_costs_one(
    name: str, sets: tuple[str, ...]
) -> None:
    recipe = load_recipe(name, (*sets, "rounds.count=5", "budget.per_edge=2.5"))
    history = played(recipe, "random", 1)
    assert history["selected"].tolist() == [2] * 5
    assert history["spent"].tolist() == [2.0] * 5
    assert make_world(recipe, 1).view(1).edge_budget.tolist() == [2_500_000]


def test_a_history_counts_what_it_says() -> None:
    history = History("x", 1, [{"wins": wins} for wins in (0, 1, 4, 9)])
    assert history.utility("linear").tolist() == [0, 1, 4, 9]
    assert history.utility("sqrt-total").tolist() == [0, 1, 2, 3]
    history.counts = np.array([4, 2, 0])
    assert history.rates().tolist() == [1.0, 0.5, 0.0]
    assert jain(np.array([1.0, 1.0])) == 1.0
    assert jain(np.array([1.0, 0.0])) == 0.5
    assert jain(np.zeros(3)) == 1.0


def test_one_blas_thread_plays_and_the_others_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = pytest.importorskip("threadpoolctl")

    def now() -> set[int]:
        return {
            one["num_threads"] for one in threads.threadpool_info() if one["user_api"] == "blas"
        }

    seen: set[int] = set()
    advance = FederatedLearner.advance

    def noted(learner: FederatedLearner, feedback: Feedback) -> None:
        seen.update(now())
        advance(learner, feedback)

    monkeypatch.setattr(FederatedLearner, "advance", noted)
    # Two threads: one would be kept by doing nothing.
    with threads.threadpool_limits(2, user_api="blas"):
        played(small(*DIGITS), "cheapest", 1)
        assert seen == {1}
        assert now() == {2}
        with pytest.raises(RecipeError):
            played(small(), "bp-ucb", 1)
        assert now() == {2}
