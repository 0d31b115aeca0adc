"""What goes with ``[privacy]`` and with ``[secure_aggregation]``, and what does not."""

from collections.abc import Iterator

from fedagent_protocol.messages import Weighting
from fedagent_task.client_terms import client_terms
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import Recipe, TaskSpec

SMALLEST_COHORT = 3
"""Of two, each knows the other's update from the sum."""

Wrong = tuple[str, str, str]


def check_privacy(recipe: Recipe) -> None:
    """Raise `RecipeError` for the first key that does not go with what is to be private."""
    for key, reason, hint in (*_differential(recipe), *_secure(recipe), *_both(recipe)):
        raise RecipeError(key, reason, hint)


def check_cohort(task: TaskSpec) -> None:
    """Raise `RecipeError` for a cohort that hides nobody; devices check it of each task."""
    least = task.secure_aggregation.minimum_cohort
    if task.secure_aggregation.wanted and least < SMALLEST_COHORT:
        why = f"must be at least {SMALLEST_COHORT} (got {least})"
        key = "secure_aggregation.minimum_cohort"
        raise RecipeError(key, why, "write minimum_cohort = 5")


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
        yield (
            "opinions.epsilon",
            "is 0, so opinions would send scores without noise",
            "write epsilon = 0.5",
        )
    if spec.mode == "local" and recipe.limits.norm:
        why = "would refuse updates because of the norm of their noise"
        yield "limits.norm", why, "write norm = 0: privacy.clip limits each device's update"


def _secure(recipe: Recipe) -> Iterator[Wrong]:
    spec = recipe.secure_aggregation
    if not spec.wanted:
        return
    if recipe.learner.name == "none":
        yield "learner.name", "is none, so there are no updates to mask", "choose another learner"
    if recipe.placement.rents:
        why = f"is {recipe.placement.name}, which merges at an edge"
        yield "placement.name", why, "use 'coordinator', or leave out secure_aggregation"


def _both(recipe: Recipe) -> Iterator[Wrong]:
    terms, name = client_terms(recipe.aggregation), recipe.aggregation.name
    if not (terms.control or terms.base_loss or terms.local_steps):
        return
    for key, wanted in (
        ("privacy.mode", recipe.privacy.wanted),
        ("secure_aggregation.minimum_cohort", recipe.secure_aggregation.wanted),
    ):
        if wanted:
            why = (
                f"cannot be combined with {name}, which needs more from each device than its update"
            )
            yield key, why, "use fedavg, fedprox or one of the server optimisers"
