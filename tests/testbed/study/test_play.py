"""One policy through one world: repeatable, checked, and learning from feedback only."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies import Feedback, RoundView, Selection
from fedagent_coordinator.policies.selection import explained, fill
from fedagent_coordinator.policies.state import StatelessPolicy
from fedagent_testbed import oracles
from fedagent_testbed.study import History, load_recipe, selection
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import play as played
from fedagent_testbed.study.selection import unmet

SMALL = ("world.clients=12", "world.edges=2", "rounds.count=6")
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


def test_a_pair_without_a_needed_feature_is_none(spy: Spy) -> None:
    spy.needs = frozenset({"compute", "download_bps"})
    history = played(small("world.missing.share=0.4"), "spy", 1)
    assert len(history) == 6
    for view, feedback in zip(spy.views, spy.feedbacks, strict=True):
        assert 0 < len(view.pair_client) < 24
        assert np.isfinite(view.feature("compute")).all()
        assert feedback.view.pair_features is view.pair_features


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
    with pytest.raises(PolicyError, match="selection breaks"):
        played(small(), "spy", 1)
