"""What no single key of a recipe can tell, beside what is of its task (`task_checks`).

A rule yields the key, what is wrong with it, and the hint.
"""

from collections.abc import Iterator

from fedagent_protocol.messages import Weighting
from fedagent_task.recipe.client_terms import client_terms
from fedagent_task.recipe.explain import Fault, hint_of
from fedagent_task.recipe.spec import AUTO, Recipe
from fedagent_task.scoring.measures import IN_TRAINING, measures_of

VOLUNTEERS = "volunteers"
"""The policy under which agents that volunteer train."""


def recipe_faults(recipe: Recipe) -> list[Fault]:
    """Return what does not go together."""
    rules = (_rounds, _target, _opinions, _differential, _secure, _both, _robust)
    return [fault for rule in rules for fault in rule(recipe)]


def _rounds(recipe: Recipe) -> Iterator[Fault]:
    rounds, budget, learner = recipe.rounds, recipe.budget, recipe.learner
    deadline = f"rounds.deadline_s = {rounds.deadline_s:g}"
    if rounds.max_wait_s < rounds.deadline_s:
        key = "rounds.max_wait_s"
        yield key, f"must be >= {deadline} (got {rounds.max_wait_s:g})", hint_of(key)
    waits_s = (learner.steps - 1) * learner.step_s
    if waits_s >= rounds.deadline_s:
        why = f"makes {learner.steps} arrival steps last {waits_s:g} s, but {deadline}"
        yield "learner.step_s", why, "use fewer or shorter steps, or a later deadline"
    if budget.total_micro is not None and budget.total_micro < budget.per_edge_micro:
        yield "budget.total", "is less than budget.per_edge", "raise it, or leave it out"


def _target(recipe: Recipe) -> Iterator[Fault]:
    """The target can be reached by what the models are evaluated by."""
    by, target = next(iter(measures_of(recipe)), None), recipe.evaluation.target
    if recipe.rounds.stop == "target" and (by is None or by.where == IN_TRAINING or not target):
        why = "is target, but there is none" if by else "is target, but nothing is measured"
        hint = "write evaluation.target, and evaluation.dataset or evaluation.on_device = true"
        yield "rounds.stop", why, hint
    if target > 1 and (by is None or by.rising or not recipe.model.regression):
        key = "evaluation.target"
        yield key, f"must be <= 1 (got {target:g})", hint_of(key)


def _opinions(recipe: Recipe) -> Iterator[Fault]:
    """Who volunteers decides where nobody else hears of opinions."""
    mode, policy = recipe.opinions.mode, recipe.policy.name
    if (mode == "peers") != (policy == VOLUNTEERS):
        hint = f"use mode peers with policy.name = {VOLUNTEERS!r} and with no other policy"
        yield "opinions.mode", f"is {mode}, but the policy is {policy}", hint


def _differential(recipe: Recipe) -> Iterator[Fault]:
    spec = recipe.privacy
    if not spec.wanted:
        return
    if not spec.releases and not recipe.rounds.count:
        why = "is missing, and the run has no fixed number of rounds"
        yield "privacy.releases", why, "write how many updates one device may give"
    if recipe.rounds.weighting is not Weighting.UNIFORM:
        why = "is samples, which reveals how many samples a device has"
        yield "rounds.weighting", why, "write weighting = 'uniform', or leave out privacy.mode"
    if recipe.data.standardize:
        why = "would send sums of samples without noise"
        yield "data.standardize", why, "declare mean and deviation in data.features"
    if recipe.evaluation.on_device:
        yield "evaluation.on_device", "would send scores without noise", "leave it out"
    if recipe.opinions.mode == "report" and recipe.opinions.epsilon <= 0:
        why = "is 0, so opinions would send scores without noise"
        yield "opinions.epsilon", why, "write epsilon = 0.5"
    if spec.mode == "local" and recipe.limits.norm:
        why = "would refuse updates because of the norm of their noise"
        yield "limits.norm", why, "write norm = 0: privacy.clip limits each device's update"


def _secure(recipe: Recipe) -> Iterator[Fault]:
    if not recipe.secure_aggregation.wanted:
        return
    if recipe.learner.name == "none":
        yield "learner.name", "is none, so there are no updates to mask", "choose another learner"
    if recipe.placement.rents:
        why = f"is {recipe.placement.name}, which merges at an edge"
        yield "placement.name", why, "use 'coordinator', or leave out secure_aggregation"


def _both(recipe: Recipe) -> Iterator[Fault]:
    if not client_terms(recipe.aggregation).more_than_updates:
        return
    name = recipe.aggregation.name
    why = f"cannot be combined with {name}, which needs more from each device than its update"
    hint = "use fedavg, fedprox or one of the server optimisers"
    if recipe.privacy.wanted:
        yield "privacy.mode", why, hint
    if recipe.secure_aggregation.wanted:
        yield "secure_aggregation.minimum_cohort", why, hint


def _robust(recipe: Recipe) -> Iterator[Fault]:
    """An edge sees the single updates that a robust rule looks at."""
    rule, hint = recipe.aggregation.robust, "leave it out, or write 'none'"
    if rule in (AUTO, "none"):
        return
    if recipe.secure_aggregation.wanted:
        why = f"is {rule!r}, but with secure_aggregation an edge sees no single update"
        yield "aggregation.robust", why, hint
    if recipe.privacy.mode == "central":
        why = f"is {rule!r}: the noise of privacy does not hide how one update affects the others"
        yield "aggregation.robust", why, hint
