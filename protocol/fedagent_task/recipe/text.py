"""Recipes: one TOML text in, one checked `Recipe` out; its task, and what model files say of it.

Every error is one line that names the key, what is wrong, and the hint. Keys are
explained in `docs/recipe.md`.
"""

import copy
import hashlib
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import msgspec
from msgspec import structs

from fedagent_protocol.messages import Weighting
from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.recipe.checks import recipe_faults
from fedagent_task.recipe.explain import Fault, Table, converted, explain, hint_of, refuse, show
from fedagent_task.recipe.spec import (
    MAX_NAMES_BYTES,
    MAX_SECONDS,
    MICRO,
    DataSpec,
    FeatureSpec,
    ModelSpec,
    Recipe,
    TaskSpec,
)
from fedagent_task.recipe.task_checks import task_faults

MAX_RECIPE_BYTES = 256 * 1024
MAX_TASK_BYTES = 128 * 1024
_DESCRIBES = "fedagent."
_encoder = msgspec.msgpack.Encoder(order="sorted")
_task_decoder = msgspec.msgpack.Decoder(TaskSpec)


def parse_recipe(text: str, sets: Iterable[str] = ()) -> Recipe:
    """Read a recipe from TOML text, with overrides like ``rounds.count=5``; or `RecipeError`."""
    table = read_table(text)
    for assignment in sets:
        table = override(table, assignment)
    return recipe_from_table(table)


def read_table(text: str) -> Table:
    """Parse TOML, or raise `RecipeError`."""
    if len(text) > MAX_RECIPE_BYTES:
        raise RecipeError(
            "recipe", f"is {len(text)} characters long", f"keep it under {MAX_RECIPE_BYTES}"
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
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


def not_finite(table: Mapping[str, object], key: str = "") -> Iterator[Fault]:
    """Yield a fault for each number that is not finite."""
    for name, value in table.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                yield from not_finite(one, f"{key}{name}.")
            elif isinstance(one, float) and not math.isfinite(one):
                full = key + name
                yield full, f"must be a finite number (got {one})", hint_of(full)


def recipe_from_table(table: Mapping[str, object]) -> Recipe:
    """Check a table as `read_table` gives it; see `parse_recipe`."""
    faults, plain = list(not_finite(table)), copy.deepcopy(dict(table))
    rounds, budget = plain.get("rounds"), plain.get("budget")
    for leaf in ("per_edge", "total"):
        if isinstance(budget, dict) and leaf in budget:
            budget[leaf], wrong = _micro(budget[leaf])
            key = f"budget.{leaf}"
            faults += [(key, wrong, hint_of(key))] if wrong else []
    if isinstance(rounds, dict):
        wait_s, deadline_s = MAX_SECONDS, rounds.get("deadline_s")
        if isinstance(deadline_s, int | float):
            wait_s = min(2 * deadline_s, MAX_SECONDS)
        rounds.setdefault("max_wait_s", wait_s)
    recipe, found = converted(plain, table)
    if recipe is not None:
        found += [*recipe_faults(recipe), *task_faults(task_of(recipe))]
    known = [key for key, _, _ in faults]
    refuse([*faults, *(fault for fault in found if fault[0] not in known)])
    assert recipe is not None
    refuse(_size_faults(recipe))
    return recipe


def recipe_digest(recipe: Recipe) -> str:
    """Return the SHA-256 that names this recipe: same content, same run."""
    return hashlib.sha256(b"fedagent recipe 1\n" + _encoder.encode(short_form(recipe))).hexdigest()


def task_of(recipe: Recipe) -> TaskSpec:
    """Return what devices need to know of the recipe: privacy with how many releases it is for."""
    privacy, masked = recipe.privacy, recipe.secure_aggregation.wanted
    if privacy.wanted and not privacy.releases:
        privacy = structs.replace(privacy, releases=recipe.rounds.count)
    return TaskSpec(
        model=recipe.model,
        data=recipe.data,
        learner=recipe.learner,
        aggregation=recipe.aggregation,
        limits=recipe.limits,
        on_device=recipe.evaluation.on_device,
        opinions=recipe.opinions,
        peers=recipe.peers,
        privacy=privacy,
        secure_aggregation=recipe.secure_aggregation,
        weighting=recipe.rounds.weighting if masked else Weighting.SAMPLES,
    )


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
        key, why, _ = explain(error, {})
        raise TaskFormatError(key, why.replace(" (got nothing)", "")) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise TaskFormatError("task", "the bytes are no MessagePack map") from error
    _expect_good(task)
    return task


def _expect_good(task: TaskSpec) -> None:
    for key, why, _ in task_faults(task):
        raise TaskFormatError(key, why)


def short_form(struct: msgspec.Struct) -> Table:
    """Return only what differs from the defaults, however it was spelled."""
    content: Table = {}
    for item in msgspec.structs.fields(struct):
        value, factory = getattr(struct, item.name), item.default_factory
        default = item.default if factory is msgspec.NODEFAULT else factory()
        if isinstance(value, msgspec.Struct):
            value, default = short_form(value), {}
        if value != default:  # which is none that a value can be, where one is required
            content[item.encode_name] = value
    return content


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
        parsed = tomllib.loads(f"v = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["v"] if parsed.keys() == {"v"} else text


def _micro(value: object) -> tuple[int, str]:
    """Return credits as micro-credits, exactly as they were written, and what is wrong."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 1, f"must be a number (got {show(value)})"
    if isinstance(value, float) and not math.isfinite(value):
        return 1, ""  # said already
    if not 0 < value <= 10**9:
        return 1, f"must be {'<= 1000000000' if value > 0 else '> 0'} (got {show(value)})"
    # The shortest text of a float has all the digits that were written, up to 15.
    micro = Fraction(repr(value)) * MICRO
    if micro.denominator != 1:
        return 1, f"has more than 6 decimals (got {show(value)})"
    return micro.numerator, ""


def _size_faults(recipe: Recipe) -> list[Fault]:
    """Return what is wrong if devices cannot be told the task, also once it is standardized."""
    key, data = "data.features" if recipe.data.features else "data.labels", recipe.data
    if data.standardize:
        some = [0.1] * min(recipe.model.features, MAX_TASK_BYTES)
        key, data = "data.standardize", frozen(data, some, some)
    size = len(task_bytes(structs.replace(recipe, data=data)))
    if recipe.data.standardize and not recipe.data.features:
        numbered = sum(len(one.name) for one in data.features)
        size += max(0, MAX_NAMES_BYTES - numbered)  # of the streams' own names, at most
    wrong = (key, f"make the task {size} bytes", f"stay under {MAX_TASK_BYTES}")
    return [wrong] if size > MAX_TASK_BYTES else []


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
    except (msgspec.DecodeError, RecursionError) as error:
        raise TaskFormatError("metadata", "is none of this version") from error
    _expect_good(task)
    return Described(task.model, task.data)
