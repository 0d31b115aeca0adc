"""What a recipe makes of a run: its policies, and its settings."""

from fedagent_protocol.messages import OpinionMode
from fedagent_protocol.tensors import Manifest
from fedagent_task import aggregation, models
from fedagent_task.aggregation import Strategy
from fedagent_task.aggregation.averaging import FedBn
from fedagent_task.aggregation.robust import Robust, Selected, rule_of
from fedagent_task.aggregation.sums import rules_of
from fedagent_task.errors import RecipeError
from fedagent_task.program.codec import decode_program
from fedagent_task.recipe.spec import Recipe
from fedagent_task.travelling import travelling

from . import iterations, placement, policies
from .core.answers import unmet_needs
from .core.decision import Learning
from .core.readiness import needs_unmet
from .core.settings import merge_period
from .policies.base import OPINIONS, SelectionPolicy


def decision_policies(recipe: Recipe) -> Learning:
    """Return the policies of a recipe, before they have learnt anything.

    Raises:
        PolicyError: One is unknown, has a wrong parameter, or needs what no such run has.
        RecipeError: Its slots do not fit.
    """
    where, control = recipe.placement, recipe.iterations
    placed = placement.create(where.name, **where.params)
    policy = policies.create(recipe.policy.name, **recipe.policy.params)
    if unmet := unmet_needs(policy.needs, opinion_mode(recipe, policy)):
        raise needs_unmet(recipe.policy.name, unmet, ())
    _check_slots(recipe, policy)
    return Learning(
        policy,
        iterations.create(control.name, control.params, default=recipe.rounds.iterations),
        placed if where.rents else None,
        recipe.learner.steps,
    )


def aggregation_of(recipe: Recipe) -> Strategy:
    """Return the strategy of a recipe.

    Raises:
        UnknownNameError, ParameterError, PluginError: There is none such.
        RecipeError: It does not go with the rest of the recipe.
    """
    name = recipe.aggregation.name
    made = aggregation.create(name, **recipe.aggregation.params)
    if recipe.placement.rents and (made.acts or made.needs):
        where = recipe.placement.name
        wrong = f"is {where!r}, but {name} runs at the coordinator"
        raise RecipeError("placement.name", wrong, "take 'coordinator', or aggregation fedavg")
    if made.every_round and recipe.rounds.merge_every > 1:
        wrong = f"is {recipe.rounds.merge_every}, but {name} merges after every round"
        raise RecipeError("rounds.merge_every", wrong, "use 1, or another aggregation")
    private = recipe.privacy.wanted or recipe.secure_aggregation.wanted
    if private and (made.needs or made.controls):
        why = f"is {name}, which needs more from each device than its update"
        raise RecipeError(
            "aggregation.name", why, "use fedavg, or turn off privacy and secure aggregation"
        )
    program = recipe.model.program
    if isinstance(made, FedBn) and not (program and decode_program(program).of_roles("local")):
        hint = "build the task with local=('norms',), or take fedavg"
        raise RecipeError("aggregation.name", "is fedbn, but no layer of the model is local", hint)
    return made


def robust_of(recipe: Recipe) -> Robust:
    """Return the robust rule of a recipe, as edge models are held to it.

    Raises:
        UnknownNameError, ParameterError: There is none such.
        RecipeError: It does not go with the rest of the recipe.
    """
    spec = recipe.aggregation
    rule = rule_of(spec)
    if isinstance(rule, Selected) and spec.name == "scaffold":
        wrong = f"is {spec.robust}, which does not look at scaffold's control variates"
        raise RecipeError("aggregation.robust", wrong, "take clipped-mean, trimmed-mean or median")
    return rule


def model_manifest(recipe: Recipe) -> Manifest:
    """Return what the files of global models hold: SCAFFOLD's variates beside the model."""
    plain = models.create(recipe.model).manifest()
    return travelling(plain, recipe.aggregation, rules_of(recipe.model).train or ())


def opinion_mode(recipe: Recipe, policy: SelectionPolicy) -> OpinionMode | None:
    """Return what clients of a run are asked for; None for nothing."""
    match recipe.opinions.mode:
        case "auto":
            return OpinionMode.REPORT if OPINIONS in policy.needs else None
        case "off":
            return None
        case mode:
            return OpinionMode(mode)


def _check_slots(recipe: Recipe, policy: SelectionPolicy) -> None:
    """Refuse slots that may end without an opinion: the policy would never learn.

    Merges go by the number of a round, slots by the rounds in which an agent played: one
    voided or empty round, and they no longer end together. Evaluations count as slots do, but
    two of them in one slot fall apart over an empty round too.
    """
    if OPINIONS not in policy.needs or opinion_mode(recipe, policy) is not OpinionMode.REPORT:
        return
    spec = recipe.policy
    given = {**policies.parameters(spec.name), **spec.params}.get("slot_rounds")
    every, merges = recipe.opinions.every, merge_period(recipe)
    if isinstance(given, int) and (merges > 1 or every not in (1, given)):
        raise RecipeError(
            "opinions.every",
            f"makes a call for opinions every {every * merges} rounds, "
            f"policy.params.slot_rounds of {spec.name} is {given}",
            f"take opinions.every = {given} and rounds.merge_every = 1",
        )
