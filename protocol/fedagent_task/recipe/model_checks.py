"""Which keys of ``[model]`` fit which kind, and which learner can train it."""

from collections.abc import Iterator

from fedagent_task.recipe.explain import hint_of, show
from fedagent_task.recipe.shapes import MAX_PARAMETERS, pooled
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec, TaskSpec

MANY = (2, 1_000_000)
_CLASSES = {
    "logistic": (0, 2),
    "linear": (0, 1),
    "mf": (0, 1),
    "svm": (0, MANY[1]),
    "graph": (0, MANY[1]),
}
"""Least and most of ``model.classes`` where they are not `MANY`."""
_ONLY = {
    **dict.fromkeys(("task", "program", "first", "once", "once_bytes"), "graph"),
    "hidden": "mlp",
    "layout": "cnn",
    "image": "cnn",
}
"""Keys of one kind alone."""

Wrong = tuple[str, str, str]


def model_rules(task: TaskSpec) -> Iterator[Wrong]:
    """Yield what is wrong with the model, and with a learner that cannot train it."""
    model, learner = task.model, task.learner
    for key, kind in _ONLY.items():
        if getattr(model, key) and model.kind != kind:
            yield f"model.{key}", f"is for kind = {kind} only", "leave it out"
    if learner.backend == "torch" and not model.is_network:
        why = f"torch does not train a {model.kind} model"
        yield "learner.backend", why, "leave it out"
    if model.kind == "mlp" and not model.hidden:
        yield "model.hidden", "is missing", hint_of("model.hidden")
    if model.kind == "cnn":
        yield from _pictures(model)
    if model.kind == "graph":
        yield from _graph(model, learner)
    yield from _numbers(model)


def _pictures(model: ModelSpec) -> Iterator[Wrong]:
    if not model.layout:
        yield "model.layout", "is missing", hint_of("model.layout")
    if model.image and len(model.image) != 3:
        yield "model.image", f"has {len(model.image)} numbers", hint_of("model.image")
    rows, columns, channels = model.picture
    if min(pooled(model.plan, model.picture)) < 1:
        why = f"is too small for two convolutions (got {rows} x {columns})"
        yield "model.image", why, "use at least 16 rows and columns"
    wanted = rows * columns * channels
    if model.features != wanted:
        why = f"must be rows times columns times channels (got {model.features})"
        yield "model.features", why, f"write features = {wanted}"


def _graph(model: ModelSpec, learner: LearnerSpec) -> Iterator[Wrong]:
    if model.task:
        hint = "give the recipe as a file, with the task file next to it"
        yield "model.task", f"names {show(model.task)}, which was not read", hint
    if not model.program:
        yield "model.task", "is missing", hint_of("model.task")
    if not model.first:
        yield "model.first", "is missing", "build the task again: fedagent task build"
    if bool(model.once) != (model.once_bytes > 0):
        why = "must be set together with model.once"
        yield "model.once_bytes", why, "give both or neither"
    if model.l2:
        why = f"is {model.l2:g}, but a graph has its own loss"
        yield "model.l2", why, "include it in the loss of the task"
    if learner.name == "strsaga":
        why = "is strsaga, which cannot train a graph"
        yield "learner.name", why, "use minibatch, sgd or bgd"
    if learner.backend == "numpy":
        yield "learner.backend", "numpy cannot train a graph", "leave it out"


def _numbers(model: ModelSpec) -> Iterator[Wrong]:
    least, most = (0, MANY[1]) if model.is_foreign else _CLASSES.get(model.kind, MANY)
    if not least <= model.classes <= most:
        why = f"must be from {least} to {most} for {model.kind} (got {model.classes})"
        hint = "write classes = 10" if (least, most) == MANY else "leave it out"
        yield "model.classes", why, hint
    factors = {"users": model.users, "items": model.items, "rank": model.rank}
    for name, number in factors.items():
        if (number > 0) != (model.kind == "mf"):
            why = f"is {number}, but the kind is {model.kind}"
            yield f"model.{name}", why, "set users, items and rank for mf only"
    if model.kind == "mf" and model.features != 2:
        why = f"must be 2 for mf (got {model.features})"
        yield "model.features", why, "samples are (user, item)"
    # A graph's are counted where its program is read.
    if model.kind != "graph" and model.parameters > MAX_PARAMETERS:
        why = f"gives {model.parameters} parameters, the limit is {MAX_PARAMETERS}"
        yield "model.features", why, "use fewer features or classes"
