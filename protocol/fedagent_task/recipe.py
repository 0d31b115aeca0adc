"""Recipes: one TOML text in, one checked `Recipe` out; and the task it gives devices.

Every error is one line that names the key, what is wrong, and the hint. Keys are
explained in `docs/recipe.md`.
"""

import hashlib
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

import msgspec
from msgspec import structs

from .errors import RecipeError, TaskFormatError
from .explain import Key, explain, hint_of, recipe_keys, show
from .measures import measures_of
from .shapes import pooled
from .spec import (
    MAX_PARAMETERS,
    MAX_SECONDS,
    MICRO,
    BudgetSpec,
    DataSpec,
    EvaluationSpec,
    FeatureSpec,
    IterationsSpec,
    LearnerSpec,
    LimitsSpec,
    ModelSpec,
    OpinionsSpec,
    PeersSpec,
    PlacementSpec,
    PolicySpec,
    Recipe,
    RoundsSpec,
    TaskSpec,
)

__all__ = [
    "MAX_TASK_BYTES",
    "MICRO",
    "BudgetSpec",
    "DataSpec",
    "EvaluationSpec",
    "IterationsSpec",
    "Key",
    "LearnerSpec",
    "LimitsSpec",
    "ModelSpec",
    "OpinionsSpec",
    "PeersSpec",
    "PlacementSpec",
    "PolicySpec",
    "Recipe",
    "RecipeError",
    "RoundsSpec",
    "TaskFormatError",
    "TaskSpec",
    "frozen",
    "override",
    "parse_recipe",
    "parse_task",
    "read_table",
    "recipe_digest",
    "recipe_from_table",
    "recipe_keys",
    "task_bytes",
    "task_digest",
    "task_of",
]

VOLUNTEERS = "volunteers"
"""The policy under which whoever volunteers trains."""
MAX_RECIPE_BYTES = 256 * 1024
MAX_TASK_BYTES = 64 * 1024
MAX_BUFFER_BYTES = 256 * 1024 * 1024
_CREDITS = (("budget", "per_edge"), ("budget", "total"))
_encoder = msgspec.msgpack.Encoder(order="sorted")
_task_decoder = msgspec.msgpack.Decoder(TaskSpec)

Table = dict[str, object]


def parse_recipe(text: str, sets: Iterable[str] = ()) -> Recipe:
    """Read a recipe from TOML text, with overrides like ``rounds.count=5``.

    Raises:
        RecipeError: A key is unknown, missing, of the wrong type or out of range.
    """
    table = read_table(text)
    for assignment in sets:
        table = override(table, assignment)
    return recipe_from_table(table)


def read_table(text: str) -> Table:
    """Parse TOML; numbers with a point stay exact decimals."""
    if len(text) > MAX_RECIPE_BYTES:
        raise RecipeError(
            "recipe", f"is {len(text)} characters long", f"keep it under {MAX_RECIPE_BYTES}"
        )
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, RecursionError, ArithmeticError) as error:
        raise RecipeError("recipe", f"is not TOML: {error}", "fix that line") from error


def override(table: Mapping[str, object], assignment: str) -> Table:
    """Return the table with one key set, ``"a.b=value"``.

    The value is read as TOML; a bare word is taken as text.

    Raises:
        RecipeError: There is no key, no value, or the path leads through a value.
    """
    path, equals, value = assignment.partition("=")
    parts = [part.strip() for part in path.split(".")]
    if not equals or not all(parts) or not value.strip():
        raise RecipeError(show(assignment), "is no override", "write key.path=value")
    return _with(table, parts, _toml_value(value.strip()))


def recipe_from_table(table: Mapping[str, object]) -> Recipe:
    """Check a table as `read_table` gives it; see `parse_recipe`."""
    plain = {name: _plain(value, name) for name, value in table.items()}
    for section, leaf in _CREDITS:
        given, made = table.get(section), plain.get(section)
        if isinstance(given, Mapping) and isinstance(made, dict) and leaf in given:
            made[leaf] = _micro(f"{section}.{leaf}", given[leaf])
    _fill_in(plain)
    try:
        recipe = msgspec.convert(plain, Recipe)
    except msgspec.ValidationError as error:
        raise explain(error, table) from error
    _cross_check(recipe)
    return recipe


def recipe_digest(recipe: Recipe) -> str:
    """Return the SHA-256 that names this recipe: same content, same run."""
    return hashlib.sha256(b"fedagent recipe 1\n" + _encoder.encode(short_form(recipe))).hexdigest()


def task_of(recipe: Recipe) -> TaskSpec:
    """Return what devices need to know of the recipe."""
    return TaskSpec(
        model=recipe.model,
        data=recipe.data,
        learner=recipe.learner,
        limits=recipe.limits,
        on_device=recipe.evaluation.on_device,
        opinions=recipe.opinions,
        peers=recipe.peers,
    )


def frozen(data: DataSpec, means: Sequence[float], deviations: Sequence[float]) -> DataSpec:
    """Return the same with explicit scaling: what a feature declares itself stays.

    Args:
        data: As the recipe has it, with or without names.
        means: Of each feature.
        deviations: The same; over 0.
    """
    given = data.features or tuple(FeatureSpec(name=f"x{i}") for i in range(1, len(means) + 1))
    made = tuple(
        one if one.declared else FeatureSpec(name=one.name, mean=mean, deviation=deviation)
        for one, mean, deviation in zip(given, means, deviations, strict=True)
    )
    return structs.replace(data, features=made, standardize=False, standardize_s=30.0)


def task_bytes(recipe: Recipe | TaskSpec) -> bytes:
    """Return the canonical bytes of the task, at most `MAX_TASK_BYTES`."""
    task = task_of(recipe) if isinstance(recipe, Recipe) else recipe
    return _encoder.encode(short_form(task))


def task_digest(body: bytes) -> str:
    """Return the SHA-256 that names these task bytes."""
    return hashlib.sha256(body).hexdigest()


def parse_task(body: bytes) -> TaskSpec:
    """Read a task that came over the wire; unknown keys are refused.

    A device that skipped a key would learn something else than was asked for.

    Raises:
        TaskFormatError: The bytes are no task, or name something unknown here.
    """
    if len(body) > MAX_TASK_BYTES:
        raise TaskFormatError("task", f"is {len(body)} bytes, the limit is {MAX_TASK_BYTES}")
    try:
        task = _task_decoder.decode(body)
    except msgspec.ValidationError as error:
        why = explain(error, {})
        raise TaskFormatError(why.key, why.reason.replace(" (got nothing)", "")) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise TaskFormatError("task", "the bytes are no MessagePack map") from error
    try:
        check_task(task)
    except RecipeError as error:
        raise TaskFormatError(error.key, error.reason) from error
    return task


def short_form(struct: msgspec.Struct) -> Table:
    """Return only what differs from the defaults, however it was spelled."""
    content: Table = {}
    for item in msgspec.structs.fields(struct):
        value = getattr(struct, item.name)
        if isinstance(value, msgspec.Struct):
            if inner := short_form(value):
                content[item.encode_name] = inner
        elif item.required or value != _default(item):
            content[item.encode_name] = value
    return content


def _default(item: msgspec.structs.FieldInfo) -> object:
    if item.default_factory is not msgspec.NODEFAULT:
        return item.default_factory()
    return item.default


def _with(table: Mapping[str, object], parts: list[str], value: object) -> Table:
    head, *rest = parts
    if not rest:
        return {**table, head: value}
    below = table.get(head, {})
    if not isinstance(below, Mapping):
        raise RecipeError(head, "is a value, not a section", "set the key itself")
    return {**table, head: _with(below, rest, value)}


def _toml_value(text: str) -> object:
    try:
        parsed = tomllib.loads(f"v = {text}", parse_float=Decimal)
    except (tomllib.TOMLDecodeError, RecursionError, ArithmeticError):
        return text
    return parsed["v"] if parsed.keys() == {"v"} else text


def _plain(value: object, key: str) -> object:
    """Copy a TOML value with decimals as finite floats."""
    if isinstance(value, Mapping):
        return {name: _plain(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, key) for item in value]
    if isinstance(value, Decimal):
        number = float(value)
        if not math.isfinite(number):
            raise RecipeError(key, f"must be a finite number (got {value})", hint_of(key))
        return number
    return value


def _micro(key: str, value: object) -> int:
    """Convert credits to micro-credits without any rounding."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise RecipeError(key, f"must be a number (got {show(value)})", hint_of(key))
    if value <= 0:
        raise RecipeError(key, f"must be > 0 (got {value})", hint_of(key))
    if value > 10**9:
        raise RecipeError(key, f"must be <= 1000000000 (got {show(value)})", hint_of(key))
    exponent = Decimal(value).as_tuple().exponent
    micro = Fraction(value) * MICRO if isinstance(exponent, int) and exponent > -60 else None
    if micro is None or micro.denominator != 1:
        raise RecipeError(key, f"has more than 6 decimals (got {show(value)})", hint_of(key))
    return micro.numerator


def _fill_in(plain: Table) -> None:
    """Write the defaults that depend on other keys."""
    rounds = plain.get("rounds")
    if isinstance(rounds, dict) and isinstance(rounds.get("deadline_s"), int | float):
        rounds.setdefault("max_wait_s", min(2 * rounds["deadline_s"], MAX_SECONDS))


def _cross_check(recipe: Recipe) -> None:
    """Check what no single key can tell."""
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
            f"make {learner.steps} arrival steps last {waits_s:g} s, "
            f"rounds.deadline_s is {rounds.deadline_s:g}",
            "take fewer or shorter steps, or a later deadline",
        )
    if budget.total_micro is not None and budget.total_micro < budget.per_edge_micro:
        raise RecipeError("budget.total", "is less than budget.per_edge", "raise it, or leave out")
    _check_target(recipe)
    _check_opinions(recipe)
    check_task(task_of(recipe))
    _check_size(recipe)


def _check_size(recipe: Recipe) -> None:
    """Check that devices can be told the task, also once it is standardized."""
    key, data = "data.features" if recipe.data.features else "data.labels", recipe.data
    if data.standardize:
        some = [0.1] * min(recipe.model.features, MAX_TASK_BYTES)
        key, data = "data.standardize", frozen(data, some, some)
    size = len(task_bytes(structs.replace(recipe, data=data)))
    if size > MAX_TASK_BYTES:
        raise RecipeError(key, f"make the task {size} bytes", f"stay under {MAX_TASK_BYTES}")


def _check_target(recipe: Recipe) -> None:
    """Check that the target can be reached by what the models are evaluated by."""
    by, target = next(iter(measures_of(recipe)), None), recipe.evaluation.target
    if target > 1 and (by is None or by.rising or not recipe.model.regression):
        key = "evaluation.target"
        raise RecipeError(key, f"must be <= 1 (got {target:g})", hint_of(key))


def _check_opinions(recipe: Recipe) -> None:
    """Check that who volunteers decides where nobody else is told of opinions."""
    peers = recipe.opinions.mode == "peers"
    if peers != (recipe.policy.name == VOLUNTEERS):
        raise RecipeError(
            "opinions.mode",
            f"is {recipe.opinions.mode}, but the policy is {recipe.policy.name}",
            f"peers goes with policy.name = {VOLUNTEERS!r}, and with no other",
        )


def _check_secrecy(task: TaskSpec) -> None:
    """Check that no score leaves a device beside what its opinions keep back."""
    opinions = task.opinions
    if not task.on_device:
        return
    if opinions.mode == "peers":
        raise RecipeError(
            "evaluation.on_device", "tells opinions, which peers keep to themselves", "drop it"
        )
    if opinions.epsilon > 0 and opinions.mode != "off":
        raise RecipeError(
            "evaluation.on_device", "tells without noise what opinions.epsilon noises", "drop one"
        )


def check_task(task: TaskSpec) -> None:
    """Raise `RecipeError` if what no single key can tell is wrong."""
    model, data, learner = task.model, task.data, task.learner
    if not (math.isfinite(data.scale) and math.isfinite(data.offset)) or data.scale == 0:
        raise RecipeError("data.scale", "must be a finite number other than 0", "leave it out")
    _check_features(model, data)
    _check_secrecy(task)
    if task.opinions.low >= task.opinions.high:
        raise RecipeError("opinions.low", "must be less than opinions.high", "leave both out")
    _check_network(model, learner)
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
        raise RecipeError(key, "is not for mf, whose samples are (user, item)", "leave it out")
    if (data.scale, data.offset) != (1.0, 0.0):
        raise RecipeError("data.scale", f"goes with no {key}", "leave out scale and offset")
    if not given:
        return
    if len(given) != model.features:
        raise RecipeError(
            key,
            f"has {len(given)} entries, model.features is {model.features}",
            "name each feature once, in the order of the stream",
        )
    if len({one.name for one in given}) != len(given):
        twice = next(one.name for i, one in enumerate(given) if one.name in _names(given[:i]))
        raise RecipeError(key, f"names {show(twice)} twice", "name each feature once")
    for one in given:
        if why := _misscaled(one):
            raise RecipeError(key, f"{show(one.name)} {why}", _FORMS)
    if data.standardize and all(one.declared for one in given):
        raise RecipeError(
            "data.standardize", "finds every feature scaled in data.features", "leave one out"
        )


_FORMS = "write name and mean = 20, deviation = 5, or name and scale = 0.2, offset = -4"


def _names(features: Iterable[FeatureSpec]) -> set[str]:
    return {one.name for one in features}


def _misscaled(one: FeatureSpec) -> str:
    """Return what is wrong with a feature's scaling, or an empty string."""
    linear, standard = (one.scale, one.offset), (one.mean, one.deviation)
    if not one.name.isprintable():
        return "is no printable name"
    if linear != (None, None) and standard != (None, None):
        return "has both scale or offset and mean or deviation"
    if not all(math.isfinite(x) for x in (*linear, *standard) if x is not None):
        return "has a number that is not finite"
    if one.scale == 0:
        return "has scale 0, which leaves nothing of it"
    if (one.mean is None) != (one.deviation is None):
        return "has only one of mean and deviation"
    if one.deviation is not None and not one.deviation > 0:
        return "has no deviation over 0"
    return ""


def _check_model(model: ModelSpec) -> None:
    many = (2, 1_000_000)
    allowed = {"logistic": (0, 2), "linear": (0, 1), "mf": (0, 1), "svm": (0, 1_000_000)}
    least, most = allowed.get(model.kind, many)
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
    if model.parameters > MAX_PARAMETERS:
        raise RecipeError(
            "model.features",
            f"make {model.parameters} parameters, the limit is {MAX_PARAMETERS}",
            "take fewer features or classes",
        )


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
            "take at least 16 rows and columns",
        )
    if model.features != rows * columns * channels:
        raise RecipeError(
            "model.features",
            f"must be rows times columns times channels (got {model.features})",
            f"write features = {rows * columns * channels}",
        )
