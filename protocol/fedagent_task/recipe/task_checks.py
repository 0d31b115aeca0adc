"""What no single key of a task can tell: keys of model, data, learner and strategy that fit.

A rule yields the key, what is wrong with it, and the hint. Devices check them too.
"""

import math
from collections.abc import Container, Iterator

from fedagent_protocol.registry import FOREIGN
from fedagent_task.program import decode_program
from fedagent_task.recipe.client_terms import client_terms
from fedagent_task.recipe.explain import Fault, hint_of, show
from fedagent_task.recipe.shapes import MAX_PARAMETERS, pooled
from fedagent_task.recipe.spec import (
    LEARNERS,
    MODELS,
    DataSpec,
    FeatureSpec,
    LearnerSpec,
    ModelSpec,
    TaskSpec,
)

MAX_BUFFER_BYTES = 256 * 1024 * 1024
SMALLEST_COHORT = 3
"""Of two, each knows the other's update from the sum."""
DESCENT = ("minibatch", "bgd", "sgd")
"""Learners whose steps an optimiser makes."""
MANY = (2, 1_000_000)
_CLASSES = {
    "logistic": (0, 2),
    "linear": (0, 1),
    "mf": (0, 1),
    "svm": (0, MANY[1]),
    "graph": (0, MANY[1]),
}
"""Least and most of ``model.classes`` where they are not `MANY`."""
_OF_KIND = {
    **dict.fromkeys(("task", "program", "first", "once", "once_bytes"), "graph"),
    **dict.fromkeys(("layout", "image"), "cnn"),
    **dict.fromkeys(("users", "items", "rank"), "mf"),
    "hidden": "mlp",
}
"""Keys of one kind of model alone."""
_NEEDED = {"mlp": ("hidden",), "cnn": ("layout",), "mf": ("users", "items", "rank")}
_OPTIMIZER_KEYS = ("optimizer", "momentum", "weight_decay", "clip_norm")
_TORCH_KEYS = ("device", "precision", "threads")
_FORMS = "write name and mean = 20, deviation = 5, or name and scale = 0.2, offset = -4"


def task_faults(task: TaskSpec) -> list[Fault]:
    """Return what does not go together; nothing is said of what follows from another fault."""
    found = [*_scales(task), *_secrecy(task)]
    if names := list(_names(task)):
        return found + names
    model = list(_model(task))
    return [*found, *model, *_learner(task), *_terms(task), *(() if model else _sizes(task))]


def unknown(key: str, name: str, known: Container[str]) -> Iterator[Fault]:
    """Yield a name that is neither built in nor of a package."""
    if name not in known and not FOREIGN.fullmatch(name):
        yield key, f"is not a known name (got {show(name)})", hint_of(key)


def _names(task: TaskSpec) -> Iterator[Fault]:
    for key, spec, name, known in (
        ("model.kind", task.model, task.model.kind, MODELS),
        ("learner.name", task.learner, task.learner.name, LEARNERS),
    ):
        yield from unknown(key, name, known)
        if spec.params and not spec.is_foreign:
            section = key.partition(".")[0]
            why = f"can only be set for a {section} from a package"
            yield f"{section}.params", why, "leave them out"


def _model(task: TaskSpec) -> Iterator[Fault]:
    model, learner = task.model, task.learner
    for key, kind in _OF_KIND.items():
        if getattr(model, key) and model.kind != kind:
            yield f"model.{key}", f"is for kind = {kind} only", "leave it out"
    lacking = [key for key in _NEEDED.get(model.kind, ()) if not getattr(model, key)]
    yield from ((f"model.{key}", "is missing", hint_of(f"model.{key}")) for key in lacking)
    if model.kind == "cnn" and not lacking and (wrong := list(_pictures(model))):
        yield from wrong
        return
    if model.kind == "graph":
        yield from _graph(model, learner)
    least, most = (0, MANY[1]) if model.is_foreign else _CLASSES.get(model.kind, MANY)
    if not least <= model.classes <= most:
        why = f"must be from {least} to {most} for {model.kind} (got {model.classes})"
        hint = "write classes = 10" if (least, most) == MANY else "leave it out"
        yield "model.classes", why, hint
    if model.kind == "mf" and model.features != 2:
        why = f"must be 2 for mf (got {model.features})"
        yield "model.features", why, "samples are (user, item)"
    # A graph's are counted where its program is read.
    if not lacking and model.kind != "graph" and model.parameters > MAX_PARAMETERS:
        why = f"gives {model.parameters} parameters, the limit is {MAX_PARAMETERS}"
        yield "model.features", why, "use fewer features or classes"


def _pictures(model: ModelSpec) -> Iterator[Fault]:
    if model.image and len(model.image) != 3:
        yield "model.image", f"has {len(model.image)} numbers", hint_of("model.image")
        return
    rows, columns, channels = model.picture
    if min(pooled(model.plan, model.picture)) < 1:
        why = f"is too small for two convolutions (got {rows} x {columns})"
        yield "model.image", why, "use at least 16 rows and columns"
        return
    wanted = rows * columns * channels
    if model.features != wanted:
        why = f"must be rows times columns times channels (got {model.features})"
        yield "model.features", why, f"write features = {wanted}"


def _graph(model: ModelSpec, learner: LearnerSpec) -> Iterator[Fault]:
    if model.task:
        hint = "give the recipe as a file, with the task file next to it"
        yield "model.task", f"names {show(model.task)}, which was not read", hint
    if not model.program:
        yield "model.task", "is missing", hint_of("model.task")
        return
    if not model.first or bool(model.once) != (model.once_bytes > 0):
        yield "model.first", "or once is missing", "build the task again: fedagent task build"
    if model.l2:
        why = f"is {model.l2:g}, but a graph has its own loss"
        yield "model.l2", why, "include it in the loss of the task"
    if learner.name == "strsaga":
        why = "is strsaga, which cannot train a graph"
        yield "learner.name", why, "use minibatch, sgd or bgd"
    if learner.backend == "numpy":
        yield "learner.backend", "numpy cannot train a graph", "leave it out"
    one = learner.batch == 1 and learner.name != "bgd" and model.program
    if one and (what := decode_program(model.program).pairs):
        yield "learner.batch", f"is 1, but {what} needs two samples", "write batch = 2 or more"


def _learner(task: TaskSpec) -> Iterator[Fault]:
    """Yield the keys that the named learner, optimiser, model or machine has no use for."""
    learner, model = task.learner, task.model
    plain = LearnerSpec()
    given = {
        key
        for key in (*_OPTIMIZER_KEYS, *_TORCH_KEYS, "decay", "backend")
        if getattr(learner, key) != getattr(plain, key)
    }
    own_steps = learner.name not in DESCENT
    for keys, useless, who in (
        (_OPTIMIZER_KEYS, own_steps, f"{learner.name}, which defines its own steps"),
        (("decay",), own_steps and not learner.is_foreign, learner.name),
        (("momentum",), learner.optimizer != "sgd", learner.optimizer),
        (_OPTIMIZER_KEYS, model.kind == "mf", "mf, whose steps update two rows only"),
        (_TORCH_KEYS, not model.is_network, f"a {model.kind} model, which torch does not train"),
        (_TORCH_KEYS, learner.backend == "numpy", "learner.backend = 'numpy'"),
    ):
        for key in keys:
            if useless and key in given:
                yield f"learner.{key}", f"does not apply to {who}", "leave it out"
    if learner.backend == "torch" and not model.is_network:
        yield "learner.backend", f"torch does not train a {model.kind} model", "leave it out"
    if learner.precision == "float16" and learner.device in ("cpu", "mps"):
        hint = "write precision = 'bfloat16', or device = 'cuda'"
        yield "learner.precision", f"float16 is not supported on {learner.device}", hint
    if learner.name == "strsaga" and learner.rate * model.l2 >= 1:
        why = f"times model.l2 must be < 1 for strsaga (got {learner.rate * model.l2:g})"
        yield "learner.rate", why, "lower learner.rate"


def _terms(task: TaskSpec) -> Iterator[Fault]:
    """What a strategy asks of devices must be what the learner can do."""
    learner, name = task.learner, task.aggregation.name
    terms, key = client_terms(task.aggregation), "aggregation.name"
    if not (terms.mu or terms.more_than_updates):
        return
    if learner.name not in DESCENT:
        why = f"{name} needs gradient steps, which {learner.name} does not take"
        yield key, why, "take fedavg, or learner.name = 'minibatch'"
    if task.model.kind == "mf" and (terms.mu or terms.control):
        yield key, f"{name} does not support mf, whose steps update two rows only", "take fedavg"
    if terms.control and (learner.optimizer != "sgd" or learner.momentum):
        why = "scaffold's control variates are defined for plain sgd only"
        yield key, why, "leave out optimizer, momentum"
    if terms.local_steps and learner.optimizer != "sgd":
        hint = "take fedavg, or optimizer = 'sgd'"
        yield key, "fednova supports only sgd, with momentum or mu", hint
    if terms.local_steps and learner.momentum and terms.mu:
        hint = "leave out learner.momentum, or aggregation.params.mu"
        yield key, "fednova supports momentum or mu, but not both", hint
    if terms.mu and terms.mu * learner.rate >= 1:
        why = f"mu times learner.rate must be < 1 (got {terms.mu * learner.rate:g})"
        yield key, why, "lower learner.rate or mu"


def _scales(task: TaskSpec) -> Iterator[Fault]:
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


def _features(model: ModelSpec, data: DataSpec) -> Iterator[Fault]:
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


def _secrecy(task: TaskSpec) -> Iterator[Fault]:
    """No score leaves a device beside what its opinions keep back; a cohort hides its members."""
    opinions, key = task.opinions, "evaluation.on_device"
    if task.on_device and opinions.mode == "peers":
        yield key, "would send opinions, which mode peers keeps on the devices", "drop it"
    if task.on_device and opinions.epsilon > 0 and opinions.mode != "off":
        why = "would send without noise the scores that opinions.epsilon protects"
        yield key, why, "leave out one of them"
    if opinions.low >= opinions.high:
        yield "opinions.low", "must be less than opinions.high", "leave both out"
    least = task.secure_aggregation.minimum_cohort
    if task.secure_aggregation.wanted and least < SMALLEST_COHORT:
        why = f"must be at least {SMALLEST_COHORT} (got {least})"
        yield "secure_aggregation.minimum_cohort", why, "write minimum_cohort = 5"


def _sizes(task: TaskSpec) -> Iterator[Fault]:
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
