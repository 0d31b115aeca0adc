"""Studies of selection: who trains at which edge, by policies of the coordinator."""

import time
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fedagent_coordinator import policies
from fedagent_coordinator.books.read import Logged
from fedagent_coordinator.core.decision import solved
from fedagent_coordinator.core.trust import Trust
from fedagent_coordinator.errors import InvalidViewError, PolicyError
from fedagent_coordinator.policies import Purpose, RoundView, SelectionPolicy, round_rng
from fedagent_coordinator.policies.base import (
    LOSSES,
    OPINIONS,
    TRUTH,
    VOLUNTEERS,
    FloatArray,
    IntArray,
)
from fedagent_coordinator.policies.selection import check_selection
from fedagent_protocol.errors import RegistryError, UnknownNameError
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import MICRO, PolicySpec
from fedagent_testbed import oracles
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.worlds import make_world

from .history import Coverage, History


class SelectionStudy:
    """One run of a policy.

    The rules of a round are those of the live engine: every selection is checked, random
    numbers are the round's own, and the policy learns from the feedback only.

    Attributes:
        log: What is kept of every round, for a replay; None keeps nothing.
    """

    log: list[Logged] | None = None

    def __init__(self, recipe: TestbedRecipe, name: str, seed: int) -> None:
        if why := unmet(recipe, name):
            hint = "take another policy, or change the recipe"
            raise RecipeError("policy", f"{name} {why}", hint)
        self._recipe, self._seed = recipe, seed
        self._policy, self._world = make_policy(recipe, name), make_world(recipe, seed)
        self._needs = self._policy.needs
        self._spec = PolicySpec(
            exploration=recipe.policy.exploration, exploration_bound=recipe.policy.exploration_bound
        )
        self._trust = Trust()
        training = recipe.world.training
        self._learner = FederatedLearner(recipe, seed) if training.dataset else None
        asked = self._learner is not None and training.opinions
        self._opinions = self._learner.opinions() if self._learner and asked else None

    def play_round(self, t: int, history: History) -> bool:
        """Play round `t`, from 1, into the history."""
        view = _with(self._world.view(t), self._opinions)
        rows, shown = seen(view, self._needs)
        shown = self._trust.seen(shown, self._needs)
        began = time.perf_counter()
        selection = solved(self._policy, shown, seed=self._seed, free_micro=None, spec=self._spec)
        decided = time.perf_counter() - began
        whole = len(rows) == len(view.pair_client)
        feedback = self._world.play(shown if whole else view, rows[selection.pairs])
        accuracy = opinion = np.nan
        if self._learner is not None:
            training = self._recipe.world.training
            if LOSSES in self._needs:
                feedback = self._learner.told(feedback)
            self._learner.advance(feedback)
            if training.opinions and t % training.slot_rounds == 0:
                self._opinions = self._learner.opinions()
                feedback = replace(feedback, opinions=_with(view, self._opinions).opinions)
                opinion = float(self._opinions.mean())
            if t % training.evaluate_every == 0 or t == self._recipe.rounds.count:
                accuracy = self._learner.accuracy()
        began = time.perf_counter()
        # Oracles keep no state: what only a testbed knows is never learnt from.
        learnt_from = shown if shown.truth is None else replace(shown, truth=None)
        lesson = feedback
        if feedback.view is not learnt_from:
            lesson = replace(feedback, view=learnt_from, pairs=selection.pairs)
        self._policy.learn(lesson)
        if self.log is not None:
            self.log.append(Logged(view=learnt_from, selection=selection, feedback=lesson))
        self._trust.learn(lesson)
        learnt = time.perf_counter() - began
        paid = view.prices(feedback.pairs[~feedback.unpaid])
        ordered = view.pair_client[feedback.pairs]
        history.count(ordered, len(view.client_price))
        if view.truth is not None:
            history.coverage = history.coverage or Coverage()
            history.coverage.count(view, ordered)
        history.rows.append(
            {
                "wins": int(feedback.X.sum()),
                "selected": len(feedback.pairs),
                "spent": int(paid.sum()) / MICRO,
                # Until the slowest edge has all it ordered, or stops waiting, which is then a tau.
                "seconds": float(feedback.tau_s.max(initial=0.0)),
                "decide_ms": 1000 * (decided + learnt),
                "accuracy": accuracy,
                "opinion": opinion,
                "explored": int(selection.notes.get("explore", 0.0) > 0),
            }
        )
        return True


def seen(view: RoundView, needs: frozenset[str]) -> tuple[IntArray, RoundView]:
    """Return what a policy of these needs sees of a round, and int64[R], the pairs that are in it.

    The truth is for those only that say so. As in a live run, a pair without a finite value of
    every needed feature is none.
    """
    reported = view.reported(needs)
    shown = view if TRUTH in needs else replace(view, truth=None)
    if not reported.all():
        shown = shown.take(reported)
    return np.flatnonzero(reported), shown


def make_policy(recipe: TestbedRecipe, name: str) -> SelectionPolicy:
    """Return a policy with the recipe's parameters for it."""
    return oracles.create(*policy_params(recipe, name))


def policy_names(recipe: TestbedRecipe) -> tuple[str, ...]:
    """Return the policies that there are, and the parameter sets that the recipe has a name for."""
    own = [name for name, params in recipe.policies.items() if "base" in params]
    return tuple(sorted({*oracles.names(), *own}))


def policy_params(recipe: TestbedRecipe, name: str) -> tuple[str, dict[str, object]]:
    """Return the policy that a name stands for, which is its `base` if it has one, and parameters.

    `world.training.slot_rounds` holds for all.

    Raises:
        UnknownNameError: There is no policy of the name.
        RecipeError: A policy has slots of its own.
    """
    params = recipe.params(name)
    base = str(params.pop("base", name))
    if base not in oracles.names():
        raise UnknownNameError("policy", name, policy_names(recipe))
    if base in policies.names() and "slot_rounds" in policies.parameters(base):
        rounds = recipe.world.training.slot_rounds
        if (own := params.setdefault("slot_rounds", rounds)) != rounds:
            raise RecipeError(
                f"policies.{name}.slot_rounds",
                f"is {own}, but opinions are asked for every {rounds} rounds",
                f"leave it out, and set world.training.slot_rounds={own}",
            )
    return base, params


def unmet(recipe: TestbedRecipe, name: str) -> str:
    """Return why a policy cannot run on a recipe, or an empty string."""
    policy = make_policy(recipe, name)
    collected = recipe.world.training.opinions and recipe.world.training.dataset
    if OPINIONS in policy.needs and not collected:
        return "needs opinions, which this recipe does not collect (world.training.opinions)"
    if VOLUNTEERS in policy.needs:
        return "needs neighbours who agree, which clients of a study are not"
    try:
        make_world(recipe, 0).view(1).reported(policy.needs)
    except InvalidViewError as error:
        return f"needs the feature {error.column!r}, which this world does not have"
    return ""


def unusable(recipe: TestbedRecipe, name: str, *, truth: bool = True) -> str:
    """Return why a policy is better left out, or an empty string.

    Besides `unmet`: it is broken, wants parameters that the recipe does not give, fails in the
    first round, or knows the truth where that is not to be.
    """
    try:
        policy = make_policy(recipe, name)
        if TRUTH in policy.needs and not truth:
            return "knows the truth"
        if why := unmet(recipe, name):
            return why
        _, view = seen(make_world(recipe, 0).view(1), policy.needs)
        selection = policy.select(view, round_rng(0, 1, Purpose.SELECT))
        check_selection(view, selection.pairs)
    except (PolicyError, RegistryError) as error:
        return f"cannot run: {error}"
    return ""


def fed(
    recipe: TestbedRecipe, names: Iterable[str], *, truth: bool = True
) -> tuple[list[str], dict[str, str]]:
    """Return those policies that a recipe's world can feed, and why the others are left out."""
    reasons = {name: unusable(recipe, name, truth=truth) for name in names}
    skipped = {name: why for name, why in reasons.items() if why}
    return [name for name in reasons if name not in skipped], skipped


def _with(view: RoundView, opinions: FloatArray | None) -> RoundView:
    if opinions is None:
        return view
    scores = opinions[np.arange(len(view.client_price)) % len(opinions)]
    reached = np.zeros(len(scores), dtype=np.bool_)
    reached[view.pair_client] = True
    return replace(view, opinions=np.where(reached, scores, np.nan))
