"""Recipes: one TOML text in, one checked `Recipe` out; its task, and what model files say of it.

Every error is one line that names the key, what is wrong, and the hint. Keys are
explained in `docs/recipe.md`.
"""

import hashlib
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import msgspec
from msgspec import structs

from fedagent_protocol.messages import Weighting
from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.recipe.checks import check_recipe
from fedagent_task.recipe.explain import explain, hint_of, show
from fedagent_task.recipe.spec import (
    MAX_NAMES_BYTES,
    MAX_SECONDS,
    MICRO,
    DataSpec,
    FeatureSpec,
    ModelSpec,
    PrivacySpec,
    Recipe,
    TaskSpec,
)
from fedagent_task.recipe.task_checks import check_task

MAX_RECIPE_BYTES = 256 * 1024
MAX_TASK_BYTES = 128 * 1024
_DESCRIBES = "fedagent."
_CREDITS = (("budget", "per_edge"), ("budget", "total"))
_encoder = msgspec.msgpack.Encoder(order="sorted")
_task_decoder = msgspec.msgpack.Decoder(TaskSpec)

Table = dict[str, object]


def parse_recipe(text: str, sets: Iterable[str] = ()) -> Recipe:
    """Read a recipe from TOML text, with overrides like ``rounds.count=5``; or `RecipeError`."""
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
    """Return the table with one key set, ``"a.b=value"``; else raise `RecipeError`.

    The value is read as TOML; a bare word is taken as text.
    """
    path, equals, value = assignment.partition("=")
    parts = [part.strip() for part in path.split(".")]
    if not equals or not all(parts) or not value.strip():
        raise RecipeError(show(assignment), "is not an override", "write key.path=value")
    return _with(table, parts, _toml_value(value.strip()))


def plain_values(value: object, key: str, hint: Callable[[str], str]) -> object:
    """Return the same with its exact decimals as floats, which is what is computed with.

    Raises:
        RecipeError: A number is not finite; `hint` says of a key how to write it.
    """
    if isinstance(value, Mapping):
        inner = f"{key}." if key else ""
        return {name: plain_values(item, f"{inner}{name}", hint) for name, item in value.items()}
    if isinstance(value, list):
        return [plain_values(item, key, hint) for item in value]
    if isinstance(value, Decimal):
        number = float(value)
        if not math.isfinite(number):
            raise RecipeError(key, f"must be a finite number (got {value})", hint(key))
        return number
    return value


def recipe_from_table(table: Mapping[str, object]) -> Recipe:
    """Check a table as `read_table` gives it; see `parse_recipe`."""
    plain = {name: plain_values(value, name, hint_of) for name, value in table.items()}
    for section, leaf in _CREDITS:
        given, made = table.get(section), plain.get(section)
        if isinstance(given, Mapping) and isinstance(made, dict) and leaf in given:
            made[leaf] = _micro(f"{section}.{leaf}", given[leaf])
    rounds = plain.get("rounds")
    if isinstance(rounds, dict) and isinstance(rounds.get("deadline_s"), int | float):
        rounds.setdefault("max_wait_s", min(2 * rounds["deadline_s"], MAX_SECONDS))
    try:
        recipe = msgspec.convert(plain, Recipe)
    except msgspec.ValidationError as error:
        raise explain(error, table) from error
    check_recipe(recipe)
    check_task(task_of(recipe))
    _check_size(recipe)
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
        aggregation=recipe.aggregation,
        limits=recipe.limits,
        on_device=recipe.evaluation.on_device,
        opinions=recipe.opinions,
        peers=recipe.peers,
        privacy=_counted(recipe),
        secure_aggregation=recipe.secure_aggregation,
        weighting=recipe.rounds.weighting
        if recipe.secure_aggregation.wanted
        else Weighting.SAMPLES,
    )


def _counted(recipe: Recipe) -> PrivacySpec:
    """Return the recipe's privacy with the number of releases it is for."""
    spec = recipe.privacy
    if not spec.wanted or spec.releases:
        return spec
    return structs.replace(spec, releases=recipe.rounds.count)


def frozen(
    data: DataSpec, means: Sequence[float], deviations: Sequence[float], names: Sequence[str] = ()
) -> DataSpec:
    """Return the same with explicit scaling: what a feature declares itself stays.

    `names` are for features that the recipe does not name; without any they are numbered.
    """
    named = names or [f"x{i}" for i in range(1, len(means) + 1)]
    given = data.features or tuple(FeatureSpec(name=name) for name in named)
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
    """Read a task that came over the wire, or raise `TaskFormatError`; unknown keys are refused.

    A device that skipped a key would learn something else than was asked for.
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


def _check_size(recipe: Recipe) -> None:
    """Check that devices can be told the task, also once it is standardized."""
    key, data = "data.features" if recipe.data.features else "data.labels", recipe.data
    if data.standardize:
        some = [0.1] * min(recipe.model.features, MAX_TASK_BYTES)
        key, data = "data.standardize", frozen(data, some, some)
    size = len(task_bytes(structs.replace(recipe, data=data)))
    if recipe.data.standardize and not recipe.data.features:
        numbered = sum(len(one.name) for one in data.features)
        size += max(0, MAX_NAMES_BYTES - numbered)  # of the streams' own names, at most
    if size > MAX_TASK_BYTES:
        raise RecipeError(key, f"make the task {size} bytes", f"stay under {MAX_TASK_BYTES}")


@dataclass(frozen=True, slots=True)
class Described:
    """What a model file says of itself, so that nobody needs the recipe to use it.

    The same texts in the metadata of safetensors and of ONNX. Weights take scaled samples; an
    ONNX graph scales them itself.
    """

    model: ModelSpec
    data: DataSpec


def described(model: ModelSpec, data: DataSpec, **more: str) -> dict[str, str]:
    """Return the metadata of a model; `more` says where it came from."""
    texts = {
        "model": msgspec.json.encode(short_form(model)).decode(),
        "data": msgspec.json.encode(short_form(data)).decode(),
        **more,
    }
    return {_DESCRIBES + name: text for name, text in texts.items()}


def read_description(metadata: Mapping[str, str]) -> Described:
    """Return what metadata says of a model; `TaskFormatError` if nothing, or what cannot be."""
    model, data = (metadata.get(_DESCRIBES + name) for name in ("model", "data"))
    if model is None or data is None:
        raise TaskFormatError("model", "the file says not what it takes: export it again")
    try:
        task = TaskSpec(
            model=msgspec.json.decode(model, type=ModelSpec),
            data=msgspec.json.decode(data, type=DataSpec),
        )
        check_task(task)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TaskFormatError("metadata", "is none of this version") from error
    except RecipeError as error:
        raise TaskFormatError(error.key, error.reason) from error
    return Described(task.model, task.data)
