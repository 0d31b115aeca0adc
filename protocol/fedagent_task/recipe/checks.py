"""What no single key of a recipe can tell: keys that must go together.

A rule yields the key, what is wrong with it, and the hint.
"""

import math
from collections.abc import Iterator

from fedagent_protocol.messages import Weighting
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.client_terms import client_terms
from fedagent_task.recipe.explain import hint_of, show
from fedagent_task.recipe.learner_checks import learner_rules, name_rules
from fedagent_task.recipe.model_checks import model_rules
from fedagent_task.recipe.spec import AUTO, DataSpec, FeatureSpec, ModelSpec, Recipe, TaskSpec
from fedagent_task.scoring.measures import measures_of

VOLUNTEERS = "volunteers"
"""The policy under which agents that volunteer train."""
MAX_BUFFER_BYTES = 256 * 1024 * 1024
SMALLEST_COHORT = 3
"""Of two, each knows the other's update from the sum."""

Wrong = tuple[str, str, str]


def check_recipe(recipe: Recipe) -> None:
    """Raise `RecipeError` if two keys do not go together."""
    for rule in (_rounds, _target, _opinions, _differential, _secure, _both, _robust):
        for wrong in rule(recipe):
            raise RecipeError(*wrong)


def check_task(task: TaskSpec) -> None:
    """Raise `RecipeError` if what no single key can tell is wrong; devices check it too."""
    for rule in (_scales, _secrecy, _cohort, name_rules, model_rules, learner_rules, _sizes):
        for wrong in rule(task):
            raise RecipeError(*wrong)


# ------------------------------------------------------------------- of a recipe


def _rounds(recipe: Recipe) -> Iterator[Wrong]:
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


def _target(recipe: Recipe) -> Iterator[Wrong]:
    """The target can be reached by what the models are evaluated by."""
    by, target = next(iter(measures_of(recipe)), None), recipe.evaluation.target
    if target > 1 and (by is None or by.rising or not recipe.model.regression):
        key = "evaluation.target"
        yield key, f"must be <= 1 (got {target:g})", hint_of(key)


def _opinions(recipe: Recipe) -> Iterator[Wrong]:
    """Who volunteers decides where nobody else hears of opinions."""
    mode, policy = recipe.opinions.mode, recipe.policy.name
    if (mode == "peers") != (policy == VOLUNTEERS):
        hint = f"use mode peers with policy.name = {VOLUNTEERS!r} and with no other policy"
        yield "opinions.mode", f"is {mode}, but the policy is {policy}", hint


def _differential(recipe: Recipe) -> Iterator[Wrong]:
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


def _secure(recipe: Recipe) -> Iterator[Wrong]:
    if not recipe.secure_aggregation.wanted:
        return
    if recipe.learner.name == "none":
        yield "learner.name", "is none, so there are no updates to mask", "choose another learner"
    if recipe.placement.rents:
        why = f"is {recipe.placement.name}, which merges at an edge"
        yield "placement.name", why, "use 'coordinator', or leave out secure_aggregation"


def _both(recipe: Recipe) -> Iterator[Wrong]:
    terms = client_terms(recipe.aggregation)
    if not (terms.control or terms.base_loss or terms.local_steps):
        return
    name = recipe.aggregation.name
    why = f"cannot be combined with {name}, which needs more from each device than its update"
    hint = "use fedavg, fedprox or one of the server optimisers"
    if recipe.privacy.wanted:
        yield "privacy.mode", why, hint
    if recipe.secure_aggregation.wanted:
        yield "secure_aggregation.minimum_cohort", why, hint


def _robust(recipe: Recipe) -> Iterator[Wrong]:
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


# --------------------------------------------------------------------- of a task


def _scales(task: TaskSpec) -> Iterator[Wrong]:
    """Each feature is scaled in one way, and none is left out."""
    model, data = task.model, task.data
    if not (math.isfinite(data.scale) and math.isfinite(data.offset)) or data.scale == 0:
        yield "data.scale", "must be a finite number other than 0", "leave it out"
    if not data.features and not data.standardize:
        return
    key = "data.features" if data.features else "data.standardize"
    if model.kind == "mf":
        yield key, "does not apply to mf, whose samples are (user, item)", "leave it out"
    if (data.scale, data.offset) != (1.0, 0.0):
        yield "data.scale", f"cannot be combined with {key}", "leave out scale and offset"
    if data.features:
        yield from _features(model, data)


def _features(model: ModelSpec, data: DataSpec) -> Iterator[Wrong]:
    key, given = "data.features", data.features
    if len(given) != model.features:
        why = f"has {len(given)} entries, model.features is {model.features}"
        yield key, why, "name each feature once, in the order of the stream"
    names = [one.name for one in given]
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), ""):
        yield key, f"names {show(twice)} twice", "name each feature once"
    for one in given:
        if why := _misscaled(one):
            yield key, f"{show(one.name)} {why}", _FORMS
    if data.standardize and all(one.declared for one in given):
        why = "has no effect, because every feature is scaled in data.features"
        yield "data.standardize", why, "leave one out"


_FORMS = "write name and mean = 20, deviation = 5, or name and scale = 0.2, offset = -4"


def _misscaled(one: FeatureSpec) -> str:
    """Return what is wrong with a feature's scaling, or an empty string."""
    linear, standard = (one.scale, one.offset), (one.mean, one.deviation)
    if not one.name.isprintable():
        return "is not a printable name"
    if linear != (None, None) and standard != (None, None):
        return "has both scale or offset and mean or deviation"
    if not all(math.isfinite(x) for x in (*linear, *standard) if x is not None):
        return "has a number that is not finite"
    if one.scale == 0:
        return "has scale 0, which would make all its values the same"
    if (one.mean is None) != (one.deviation is None):
        return "has only one of mean and deviation"
    if one.deviation is not None and not one.deviation > 0:
        return "needs a deviation above 0"
    return ""


def _secrecy(task: TaskSpec) -> Iterator[Wrong]:
    """No score leaves a device beside what its opinions keep back."""
    opinions, key = task.opinions, "evaluation.on_device"
    if task.on_device and opinions.mode == "peers":
        yield key, "would send opinions, which mode peers keeps on the devices", "drop it"
    if task.on_device and opinions.epsilon > 0 and opinions.mode != "off":
        why = "would send without noise the scores that opinions.epsilon protects"
        yield key, why, "leave out one of them"
    if opinions.low >= opinions.high:
        yield "opinions.low", "must be less than opinions.high", "leave both out"


def _cohort(task: TaskSpec) -> Iterator[Wrong]:
    """A cohort hides its members."""
    least = task.secure_aggregation.minimum_cohort
    if task.secure_aggregation.wanted and least < SMALLEST_COHORT:
        why = f"must be at least {SMALLEST_COHORT} (got {least})"
        yield "secure_aggregation.minimum_cohort", why, "write minimum_cohort = 5"


def _sizes(task: TaskSpec) -> Iterator[Wrong]:
    model, labels, learner = task.model, task.data.labels, task.learner
    if labels and model.regression:
        yield "data.labels", f"names classes, but {model.kind} models have none", "drop it"
    classes = model.num_classes
    if labels and (len(labels) != classes or len(set(labels)) != classes):
        yield "data.labels", f"must be {classes} different names", "name each class"
    size = learner.buffer * model.features * 4
    if learner.name != "none" and size > MAX_BUFFER_BYTES:
        hint = f"keep buffer times features under {MAX_BUFFER_BYTES // 4}"
        yield "learner.buffer", f"needs {size} bytes on a device", hint
