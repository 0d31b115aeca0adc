"""What no single key of a recipe can tell: keys that must go together."""

import math

from fedagent_task.errors import RecipeError
from fedagent_task.recipe.explain import hint_of, show
from fedagent_task.recipe.learner_checks import check_learner, check_names
from fedagent_task.recipe.privacy_checks import check_cohort, check_privacy
from fedagent_task.recipe.shapes import MAX_PARAMETERS, pooled
from fedagent_task.recipe.spec import (
    AUTO,
    DataSpec,
    FeatureSpec,
    LearnerSpec,
    ModelSpec,
    Recipe,
    TaskSpec,
)
from fedagent_task.scoring.measures import measures_of

VOLUNTEERS = "volunteers"
"""The policy under which agents that volunteer train."""
MAX_BUFFER_BYTES = 256 * 1024 * 1024


def check_recipe(recipe: Recipe) -> None:
    """Raise `RecipeError` if two keys do not go together."""
    rounds, budget = recipe.rounds, recipe.budget
    if rounds.max_wait_s < rounds.deadline_s:
        raise RecipeError(
            "rounds.max_wait_s",
            f"must be >= rounds.deadline_s = {rounds.deadline_s:g} (got {rounds.max_wait_s:g})",
            hint_of("rounds.max_wait_s"),
        )
    learner = recipe.learner
    waits_s = (learner.steps - 1) * learner.step_s
    if waits_s >= rounds.deadline_s:
        raise RecipeError(
            "learner.step_s",
            f"makes {learner.steps} arrival steps last {waits_s:g} s, but rounds.deadline_s is "
            f"{rounds.deadline_s:g}",
            "use fewer or shorter steps, or a later deadline",
        )
    if budget.total_micro is not None and budget.total_micro < budget.per_edge_micro:
        raise RecipeError(
            "budget.total", "is less than budget.per_edge", "raise it, or leave it out"
        )
    _check_target(recipe)
    _check_opinions(recipe)
    check_privacy(recipe)
    _check_robust(recipe)


def _check_target(recipe: Recipe) -> None:
    """Check that the target can be reached by what the models are evaluated by."""
    by, target = next(iter(measures_of(recipe)), None), recipe.evaluation.target
    if target > 1 and (by is None or by.rising or not recipe.model.regression):
        key = "evaluation.target"
        raise RecipeError(key, f"must be <= 1 (got {target:g})", hint_of(key))


def _check_robust(recipe: Recipe) -> None:
    """Check that an edge sees the single updates that a robust rule looks at."""
    rule = recipe.aggregation.robust
    if rule in (AUTO, "none"):
        return
    if recipe.secure_aggregation.wanted:
        why = f"is {rule!r}, but with secure_aggregation an edge sees no single update"
    elif recipe.privacy.mode == "central":
        why = f"is {rule!r}: the noise of privacy does not hide how one update affects the others"
    else:
        return
    raise RecipeError("aggregation.robust", why, "leave it out, or write 'none'")


def _check_opinions(recipe: Recipe) -> None:
    """Check that who volunteers decides where nobody else is told of opinions."""
    peers = recipe.opinions.mode == "peers"
    if peers != (recipe.policy.name == VOLUNTEERS):
        raise RecipeError(
            "opinions.mode",
            f"is {recipe.opinions.mode}, but the policy is {recipe.policy.name}",
            f"use mode peers with policy.name = {VOLUNTEERS!r} and with no other policy",
        )


def _check_secrecy(task: TaskSpec) -> None:
    """Check that no score leaves a device beside what its opinions keep back."""
    opinions = task.opinions
    if not task.on_device:
        return
    if opinions.mode == "peers":
        raise RecipeError(
            "evaluation.on_device",
            "would send opinions, which mode peers keeps on the devices",
            "drop it",
        )
    if opinions.epsilon > 0 and opinions.mode != "off":
        raise RecipeError(
            "evaluation.on_device",
            "would send without noise the scores that opinions.epsilon protects",
            "leave out one of them",
        )


def check_task(task: TaskSpec) -> None:
    """Raise `RecipeError` if what no single key can tell is wrong."""
    model, data, learner = task.model, task.data, task.learner
    if not (math.isfinite(data.scale) and math.isfinite(data.offset)) or data.scale == 0:
        raise RecipeError("data.scale", "must be a finite number other than 0", "leave it out")
    _check_features(model, data)
    _check_secrecy(task)
    check_cohort(task)
    if task.opinions.low >= task.opinions.high:
        raise RecipeError("opinions.low", "must be less than opinions.high", "leave both out")
    check_names(model, learner)
    _check_network(model, learner)
    _check_graph(model, learner)
    check_learner(task)
    _check_model(model)
    if data.labels and model.regression:
        raise RecipeError(
            "data.labels", f"names classes, but {model.kind} models have none", "drop it"
        )
    classes = model.num_classes
    if data.labels and (len(data.labels) != classes or len(set(data.labels)) != classes):
        raise RecipeError("data.labels", f"must be {classes} different names", "name each class")
    if learner.name == "strsaga" and learner.rate * model.l2 >= 1:
        raise RecipeError(
            "learner.rate",
            f"times model.l2 must be < 1 for strsaga (got {learner.rate * model.l2:g})",
            "lower learner.rate",
        )
    if learner.name != "none" and learner.buffer * model.features * 4 > MAX_BUFFER_BYTES:
        raise RecipeError(
            "learner.buffer",
            f"needs {learner.buffer * model.features * 4} bytes on a device",
            f"keep buffer times features under {MAX_BUFFER_BYTES // 4}",
        )


def _check_features(model: ModelSpec, data: DataSpec) -> None:
    """Check that each feature is scaled in one way, and none is left out."""
    given = data.features
    if not given and not data.standardize:
        return
    key = "data.features" if given else "data.standardize"
    if model.kind == "mf":
        raise RecipeError(
            key, "does not apply to mf, whose samples are (user, item)", "leave it out"
        )
    if (data.scale, data.offset) != (1.0, 0.0):
        raise RecipeError(
            "data.scale", f"cannot be combined with {key}", "leave out scale and offset"
        )
    if not given:
        return
    if len(given) != model.features:
        raise RecipeError(
            key,
            f"has {len(given)} entries, model.features is {model.features}",
            "name each feature once, in the order of the stream",
        )
    names = [one.name for one in given]
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), ""):
        raise RecipeError(key, f"names {show(twice)} twice", "name each feature once")
    for one in given:
        if why := _misscaled(one):
            raise RecipeError(key, f"{show(one.name)} {why}", _FORMS)
    if data.standardize and all(one.declared for one in given):
        raise RecipeError(
            "data.standardize",
            "has no effect, because every feature is scaled in data.features",
            "leave one out",
        )


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


def _check_model(model: ModelSpec) -> None:
    many = (2, 1_000_000)
    allowed = {"logistic": (0, 2), "linear": (0, 1), "mf": (0, 1), "svm": (0, 1_000_000)}
    allowed["graph"] = (0, 1_000_000)
    least, most = (0, many[1]) if model.is_foreign else allowed.get(model.kind, many)
    if not least <= model.classes <= most:
        raise RecipeError(
            "model.classes",
            f"must be from {least} to {most} for {model.kind} (got {model.classes})",
            "write classes = 10" if (least, most) == many else "leave it out",
        )
    factors = {"users": model.users, "items": model.items, "rank": model.rank}
    for name, number in factors.items():
        if (number > 0) != (model.kind == "mf"):
            wrong = f"is {number}, but the kind is {model.kind}"
            raise RecipeError(f"model.{name}", wrong, "set users, items and rank for mf only")
    if model.kind == "mf" and model.features != 2:
        raise RecipeError(
            "model.features", f"must be 2 for mf (got {model.features})", "samples are (user, item)"
        )
    # A graph's are counted where its program is read.
    if model.kind != "graph" and model.parameters > MAX_PARAMETERS:
        raise RecipeError(
            "model.features",
            f"gives {model.parameters} parameters, the limit is {MAX_PARAMETERS}",
            "use fewer features or classes",
        )


def _check_graph(model: ModelSpec, learner: LearnerSpec) -> None:
    """Check the keys that only models of kind graph have, and what goes with none of them."""
    if model.kind != "graph":
        for key in ("task", "program", "first", "once", "once_bytes"):
            if getattr(model, key):
                raise RecipeError(f"model.{key}", "is for kind = graph only", "leave it out")
        return
    if model.task:
        hint = "give the recipe as a file, with the task file next to it"
        raise RecipeError("model.task", f"names {show(model.task)}, which was not read", hint)
    if not model.program:
        raise RecipeError("model.task", "is missing", hint_of("model.task"))
    if not model.first:
        raise RecipeError("model.first", "is missing", "build the task again: fedagent task build")
    if bool(model.once) != (model.once_bytes > 0):
        raise RecipeError(
            "model.once_bytes", "must be set together with model.once", "give both or neither"
        )
    if model.l2:
        wrong = f"is {model.l2:g}, but a graph has its own loss"
        raise RecipeError("model.l2", wrong, "include it in the loss of the task")
    if learner.name == "strsaga":
        raise RecipeError(
            "learner.name", "is strsaga, which cannot train a graph", "use minibatch, sgd or bgd"
        )
    if learner.backend == "numpy":
        raise RecipeError("learner.backend", "numpy cannot train a graph", "leave it out")


def _check_network(model: ModelSpec, learner: LearnerSpec) -> None:
    """Check the keys that only neural networks have."""
    for key, kind, given in (
        ("hidden", "mlp", model.hidden),
        ("layout", "cnn", model.layout),
        ("image", "cnn", model.image),
    ):
        if given and model.kind != kind:
            raise RecipeError(f"model.{key}", f"is for kind = {kind} only", "leave it out")
    if learner.backend == "torch" and not model.is_network:
        raise RecipeError(
            "learner.backend", f"torch does not train a {model.kind} model", "leave it out"
        )
    if model.kind == "mlp" and not model.hidden:
        raise RecipeError("model.hidden", "is missing", hint_of("model.hidden"))
    if model.kind != "cnn":
        return
    if not model.layout:
        raise RecipeError("model.layout", "is missing", hint_of("model.layout"))
    if model.image and len(model.image) != 3:
        raise RecipeError("model.image", f"has {len(model.image)} numbers", hint_of("model.image"))
    rows, columns, channels = model.picture
    if min(pooled(model.plan, model.picture)) < 1:
        raise RecipeError(
            "model.image",
            f"is too small for two convolutions (got {rows} x {columns})",
            "use at least 16 rows and columns",
        )
    if model.features != rows * columns * channels:
        raise RecipeError(
            "model.features",
            f"must be rows times columns times channels (got {model.features})",
            f"write features = {rows * columns * channels}",
        )
