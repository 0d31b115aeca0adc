"""One policy through one world: the loop of every study, in virtual time."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedagent_coordinator import policies
from fedagent_coordinator.errors import MissingFeatureError, PolicyError
from fedagent_coordinator.policies import Purpose, RoundView, SelectionPolicy, round_rng
from fedagent_coordinator.policies.base import OPINIONS, VOLUNTEERS, FloatArray
from fedagent_coordinator.policies.selection import check_selection
from fedagent_protocol.errors import RegistryError
from fedagent_task.errors import RecipeError

from .exchange_world import ExchangeWorld
from .history import History
from .learner import Learner
from .open_world import OpenWorld
from .radio import RadioWorld
from .spec import TestbedRecipe
from .world import World

Progress = Callable[[int], None]


def make_policy(recipe: TestbedRecipe, name: str) -> SelectionPolicy:
    """Return a policy with the recipe's parameters for it.

    Raises:
        PolicyError: There is none of that name, or a parameter is wrong.
        RecipeError: Its slots are not those of the training.
    """
    return policies.create(name, **policy_params(recipe, name))


def policy_params(recipe: TestbedRecipe, name: str) -> dict[str, object]:
    """Return the recipe's parameters for a policy; `training.slot_rounds` holds for all.

    Raises:
        PolicyError: There is none of that name.
        RecipeError: Its slots are not those of the training.
    """
    params = dict(recipe.policies.get(name, {}))
    if "slot_rounds" in policies.parameters(name):
        rounds = recipe.training.slot_rounds
        if (own := params.setdefault("slot_rounds", rounds)) != rounds:
            raise RecipeError(
                f"policies.{name}.slot_rounds",
                f"is {own}, but opinions are asked for every {rounds} rounds",
                f"leave it out, and set training.slot_rounds={own}",
            )
    return params


def make_world(recipe: TestbedRecipe, seed: int) -> World:
    """Return the recipe's world."""
    match recipe.world:
        case "radio":
            return RadioWorld(recipe, seed)
        case "exchange":
            return ExchangeWorld(recipe, seed)
        case "open":
            return OpenWorld(recipe, seed)
        case "traces":
            from .trace_world import TraceWorld  # noqa: PLC0415 - reads archives

            return TraceWorld(recipe, seed)
        case "bas":
            raise RecipeError("world", "is bas", "play it by fedagent_testbed.streaming")


def unmet(recipe: TestbedRecipe, name: str) -> str:
    """Return why a policy cannot run on a recipe, or an empty string.

    Raises:
        PolicyError: There is no such policy, or a parameter is wrong.
    """
    policy = make_policy(recipe, name)
    collected = recipe.training.opinions and recipe.training.dataset
    if OPINIONS in policy.needs and not collected:
        return "needs opinions, which this recipe does not collect (training.opinions)"
    if VOLUNTEERS in policy.needs:
        return "needs neighbours who agree, which clients of a study have with run --full only"
    return lacking(recipe, policy)


def lacking(recipe: TestbedRecipe, policy: SelectionPolicy) -> str:
    """Return which feature that a policy needs is not in a recipe's world, or ""."""
    try:
        make_world(recipe, 0).view(1).reported(policy.needs)
    except MissingFeatureError as error:
        return f"needs the feature {error.feature!r}, which this world does not have"
    return ""


def unusable(recipe: TestbedRecipe, name: str) -> str:
    """Return why a policy that nobody named is better left out, or an empty string.

    Besides `unmet`: it is broken, wants parameters that the recipe does not give, or
    fails in the first round.
    """
    try:
        if why := unmet(recipe, name):
            return why
        view = make_world(recipe, 0).view(1)
        selection = make_policy(recipe, name).select(view, round_rng(0, 1, Purpose.SELECT))
        check_selection(view, selection.pairs)
    except (PolicyError, RegistryError) as error:
        return f"cannot run: {error}"
    return ""


def play(
    recipe: TestbedRecipe, name: str, seed: int, progress: Progress = lambda _t: None
) -> History:
    """Run a policy for all rounds of a recipe; deterministic by seed.

    The rules of a round are those of the live engine: every selection is checked, random
    numbers are the round's own, and the policy learns from the feedback only.

    Args:
        recipe: The study.
        name: The policy.
        seed: Of the world, the training and the policy.
        progress: Told the number of each round that is over.

    Raises:
        PolicyError: The policy fails, or breaks a constraint.
        DatasetError: The recipe's data are not there.
        RecipeError: The policy cannot run on this recipe.
    """
    if why := unmet(recipe, name):
        raise RecipeError("policy", f"{name} {why}", "take another policy, or change the recipe")
    policy, world = make_policy(recipe, name), make_world(recipe, seed)
    learner = Learner(recipe, seed) if recipe.training.dataset else None
    rounds = recipe.rounds.count
    history = History.empty(name, seed, rounds)
    opinions: FloatArray | None = None
    if learner is not None and recipe.training.opinions:
        opinions = learner.opinions()
    for t in range(1, rounds + 1):
        view = _with(world.view(t), opinions)
        began = time.perf_counter()
        selection = policy.select(view, round_rng(seed, t, Purpose.SELECT))
        decided = time.perf_counter() - began
        check_selection(view, selection.pairs)
        feedback = world.play(view, selection.pairs)
        if learner is not None:
            learner.advance(feedback)
            if recipe.training.opinions and t % recipe.training.slot_rounds == 0:
                opinions = learner.opinions()
                feedback = replace(feedback, opinions=_with(view, opinions).opinions)
                history.opinion[t - 1] = float(opinions.mean())
            if t % recipe.training.evaluate_every == 0 or t == rounds:
                history.accuracy[t - 1] = learner.accuracy()
        began = time.perf_counter()
        # Oracles keep no state: what only a testbed knows is never learnt from.
        policy.learn(replace(feedback, view=replace(view, truth=None)))
        history.decide_ms[t - 1] = 1000 * (decided + time.perf_counter() - began)
        history.put(t, feedback)
        history.explored += selection.notes.get("explore", 0.0) > 0
        progress(t)
    return history


def _with(view: RoundView, opinions: FloatArray | None) -> RoundView:
    """Return the view with the opinions of whoever holds data; strangers hold somebody's."""
    if opinions is None:
        return view
    everybody = opinions[np.arange(len(view.client_price)) % len(opinions)]
    reached = np.zeros(len(everybody), dtype=np.bool_)
    reached[view.pair_client] = True
    return replace(view, opinions=np.where(reached, everybody, np.nan))
