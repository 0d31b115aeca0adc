"""Testbed recipes: what world, what budget, what training, which policies.

Explained key by key in `docs/testbed.md`. A recipe is TOML; every key but `name` has a
default, and `--set key.path=value` overrides any.
"""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fedagent_task.errors import RecipeError
from fedagent_task.explain import explain
from fedagent_task.recipe import MICRO, override, read_table
from fedagent_testbed.streaming.spec import RANGES, Streaming

from .usage import check_policies, used

Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0, lt=1e12)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
NoiseDensity = Annotated[float, Meta(ge=-200, le=-80)]
Megahertz = Annotated[float, Meta(ge=1e-3, le=1e4)]
Kilometres = Annotated[float, Meta(ge=1e-3, le=1e3)]
PerCompute = Annotated[float, Meta(ge=1e-3, le=1e4)]
Snr = Annotated[float, Meta(ge=1e-6, le=1e12)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a recipe."""


class Radio(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The channel of ALGORITHMS section 6; powers in dBm, distances in km.

    Attributes:
        power_dbm: Transmission power, both ways.
        noise_dbm_hz: Noise density N0.
        path_loss_db: Path loss at 1 km.
        path_loss_slope_db: Per decade of distance.
        shadowing_db: Standard deviation of log-normal shadowing, per pair and round.
        bandwidth_mhz: Range, drawn per client and round.
        distance_km: Range, drawn per pair and round.
    """

    power_dbm: Annotated[float, Meta(ge=-30, le=60)] = 23.0
    noise_dbm_hz: NoiseDensity = -166.0
    path_loss_db: Annotated[float, Meta(ge=0, le=250)] = 128.1
    path_loss_slope_db: Annotated[float, Meta(ge=0, le=100)] = 37.6
    shadowing_db: Annotated[float, Meta(ge=0, le=30)] = 0.0
    bandwidth_mhz: tuple[Megahertz, Megahertz] = (0.3, 1.0)
    distance_km: tuple[Kilometres, Kilometres] = (0.01, 2.0)


class Work(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client does in a round, and what it asks for it.

    Attributes:
        download_mbit, upload_mbit: Model exchange.
        work: Computation q; it takes q / y seconds.
        compute: Range of y, drawn per client and round.
        price: Range of the price per unit of y, fixed per client.
    """

    download_mbit: Positive = 0.18
    upload_mbit: Positive = 0.18
    work: Positive = 2.41
    compute: tuple[PerCompute, PerCompute] = (2.0, 4.0)
    price: tuple[PerCompute, PerCompute] = (0.5, 2.0)


class Exchange(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The linear exchange time of ALGORITHMS section 4: classes of clients at one edge."""

    work_s: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (1.0, 2.0, 3.0, 4.0)
    cold_s: Annotated[float, Meta(ge=0, le=1e9)] = 1.0
    snr: tuple[Snr, ...] = (1000.0, 100.0, 10.0, 1.0)
    model_mbit: Positive = 20.0
    availability: Share = 0.8


class Traces(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links out of recorded traces.

    Attributes:
        links: Folder or archive below FEDAGENT_DATA, see `docs/testbed.md`.
        rtt: RTT matrix below FEDAGENT_DATA; empty for none.
        round_s: Seconds of trace between two rounds.
    """

    links: str = "net/hsdpa_norway_3g.tar.gz"
    rtt: str = ""
    round_s: Positive = 10.0


class Links(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who sees whom: every client the same number of edges, fixed by the seed; 0 for all."""

    visible: Annotated[int, Meta(ge=0)] = 0


class Budget(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credits that each edge may spend in a round."""

    per_edge: Annotated[float, Meta(ge=1e-6, le=1e9)] = 3.5


class Rounds(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One round.

    Attributes:
        count: T.
        deadline_s: Later updates do not count.
        max_wait_s: How long an edge waits for its Z-th update at most.
        min_updates: Z.
        merge_every: T_ES.
    """

    count: Count = 1000
    deadline_s: Positive = 3.0
    max_wait_s: Positive = 6.0
    min_updates: Count = 1
    merge_every: Count = 5


class Churn(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients that leave for good and are replaced by strangers."""

    share: Share = 0.0
    every: Count = 50


class Liars(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients that claim `factor` times the compute they have."""

    share: Share = 0.0
    factor: Annotated[float, Meta(ge=1, le=100)] = 2.0


class Change(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A radio that changes for good after a share of the rounds; null for none."""

    after: Share = 0.5
    noise_dbm_hz: NoiseDensity | None = None


class Training(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is learnt; without a dataset only decisions are studied.

    Attributes:
        dataset: ``digits``, ``mnist`` or ``fashion-mnist``.
        partition: ``two-labels``, ``iid``, ``dirichlet`` or ``iid-for``.
        iid_clients: With ``iid-for``: how many of the first clients hold all labels.
        gamma: With ``dirichlet``: its concentration.
        samples_per_client: None deals all samples.
        model: ``softmax``, ``svm`` or ``mlp``.
        rate: Step of SGD.
        batch: Batch size.
        epochs: Passes per round, or
        local_steps: steps per round.
        weighting: ``uniform`` or ``samples``.
        slot_rounds: Rounds of a slot; opinions are asked for at its end (section 5).
        reset: Start every slot from the same model.
        opinions: Clients score the global model after every slot.
        evaluated_on: ``own``: a client scores it on a fifth of its samples, which it does not train
            on; ``test``: on its share of the common test set.
        evaluate_every: Rounds between two tests of accuracy.
        targets: Accuracies whose first round and second are reported.
    """

    dataset: str = ""
    partition: Literal["two-labels", "iid", "dirichlet", "iid-for"] = "two-labels"
    iid_clients: Annotated[int, Meta(ge=0)] = 5
    gamma: Positive = 1.0
    samples_per_client: Annotated[int, Meta(ge=1)] | None = None
    model: Literal["softmax", "svm", "mlp"] = "softmax"
    rate: Positive = 0.005
    batch: Count = 32
    epochs: Annotated[int, Meta(ge=1)] | None = None
    local_steps: Annotated[int, Meta(ge=1)] | None = None
    weighting: Literal["uniform", "samples"] = "uniform"
    slot_rounds: Count = 1
    reset: bool = False
    opinions: bool = False
    evaluated_on: Literal["own", "test"] = "own"
    evaluate_every: Count = 1
    targets: tuple[Share, ...] = (0.7,)


class TestbedRecipe(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A study.

    Attributes:
        world: ``radio``, ``exchange``, ``traces``, ``open`` (all reach the edge at once), or
            ``bas``: streams, and edges that are rented (section `streaming`).
        success: With ``open``: the chance that an update arrives.
        policy: Who decides when nobody is named.
        compare: Policies that `compare` takes when none are named.
        policies: Parameters by policy name.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    about: str = ""
    world: Literal["radio", "exchange", "traces", "open", "bas"] = "radio"
    clients: Count = 50
    edges: Annotated[int, Meta(ge=1, le=65_536)] = 3
    utility: Literal["linear", "sqrt-total"] = "linear"
    success: Share = 1.0
    policy: str = "adaptive"
    compare: tuple[str, ...] = ()
    rounds: Rounds = Rounds()
    budget: Budget = Budget()
    links: Links = Links()
    radio: Radio = Radio()
    work: Work = Work()
    exchange: Exchange = Exchange()
    traces: Traces = Traces()
    churn: Churn = Churn()
    liars: Liars = Liars()
    change: Change = Change()
    training: Training = Training()
    streaming: Streaming = Streaming()
    policies: dict[str, dict[str, object]] = {}

    @property
    def budget_micro(self) -> int:
        """What an edge may spend in a round, micro-credits."""
        return round(self.budget.per_edge * MICRO)


def load_recipe(recipe: str | Path, sets: Iterable[str] = ()) -> TestbedRecipe:
    """Read a recipe by the name of one of ours, or from a file, with overrides.

    Overrides like ``key.path=value``; nothing after the sign is the empty text. One that
    changes the world leaves out what the recipe says for its own only.

    Raises:
        RecipeError: There is none, or a key is unknown, missing, out of range, or not used
            by the recipe's world.
    """
    table = read_table(_text(recipe))
    own_world, changes = str(table.get("world", "radio")), list(sets)
    for assignment in changes:
        key, equals, value = assignment.partition("=")
        table = override(table, assignment if value.strip() or not equals else f'{key}=""')
    check_policies(table)
    world = _converted(table).world
    keys = [assignment.partition("=")[0].replace(" ", "") for assignment in changes]
    made = _converted(used(table, world, own_world, keys))
    _cross_check(made)
    return made


def _converted(table: Mapping[str, object]) -> TestbedRecipe:
    try:
        return msgspec.convert(_plain(table, ""), TestbedRecipe)
    except msgspec.ValidationError as error:
        raise _explained(error, table) from error


def recipe_names() -> tuple[str, ...]:
    """Return the names of the recipes that come with the testbed."""
    return tuple(sorted(path.stem for path in _folder().glob("*.toml")))


def _folder() -> Path:
    return Path(__file__).parent.parent / "recipes"


def _text(recipe: str | Path) -> str:
    path = Path(recipe)
    if path.suffix != ".toml":
        path = _folder() / f"{recipe}.toml"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(recipe_names())
        raise RecipeError(
            str(recipe)[:80], "cannot be read", f"name a .toml file, or one of {known}"
        ) from error


def _plain(value: object, key: str) -> object:
    """Turn exact decimals into floats, which is what a study computes with."""
    if isinstance(value, Mapping):
        inner = f"{key}." if key else ""
        return {str(name): _plain(item, f"{inner}{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, key) for item in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    number = float(str(value))
    if not math.isfinite(number):
        raise RecipeError(key, f"is {number}", "write a finite number")
    return number


def _explained(error: msgspec.ValidationError, table: Mapping[str, object]) -> RecipeError:
    """Name the key and the hint; unknown keys get the nearest of ours."""
    why = explain(error, table)
    hint = "see docs/testbed.md"
    if why.reason == "unknown key":
        near = _nearest(why.key)
        hint = f"did you mean {near}?" if near else hint
    return RecipeError(why.key, why.reason, hint)


_RENAMED = {"training.judged_on": "training.evaluated_on"}


def _nearest(key: str) -> str:
    """Return the known key most like this one, by its whole name or its last word."""
    if key in _RENAMED:
        return _RENAMED[key]
    known = list(_keys(TestbedRecipe, ""))
    if close := difflib.get_close_matches(key, known, n=1):
        return close[0]
    leaves = {name.rpartition(".")[2]: name for name in known}
    close = difflib.get_close_matches(key.rpartition(".")[2], list(leaves), n=1)
    return leaves[close[0]] if close else ""


def _keys(struct: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    for item in msgspec.structs.fields(struct):
        name = prefix + item.encode_name
        yield name
        if isinstance(item.type, type) and issubclass(item.type, msgspec.Struct):
            yield from _keys(item.type, name + ".")


def _cross_check(recipe: TestbedRecipe) -> None:
    """Check what no single key can tell."""
    if recipe.links.visible > recipe.edges:
        raise RecipeError("links.visible", f"is {recipe.links.visible}", "is at most `edges`")
    for key, (low, high) in {
        "radio.bandwidth_mhz": recipe.radio.bandwidth_mhz,
        "radio.distance_km": recipe.radio.distance_km,
        "work.compute": recipe.work.compute,
        "work.price": recipe.work.price,
        **{f"streaming.{key}": getattr(recipe.streaming, key) for key in RANGES},
    }.items():
        if not 0 < low <= high:
            raise RecipeError(key, f"is [{low}, {high}]", "write [low, high] with 0 < low <= high")
    classes = len(recipe.exchange.work_s)
    if recipe.world == "exchange":
        if len(recipe.exchange.snr) != classes:
            raise RecipeError("exchange.snr", f"has not {classes} classes", "name one per class")
        if recipe.clients % classes:
            raise RecipeError("clients", f"is {recipe.clients}", f"write a multiple of {classes}")
    if recipe.world in {"exchange", "open"} and recipe.edges != 1:
        raise RecipeError("edges", f"is {recipe.edges}", f"the {recipe.world} world has one edge")
    if (recipe.world == "bas") != bool(recipe.streaming.dataset):
        given = recipe.streaming.dataset or "missing"
        raise RecipeError("streaming.dataset", f"is {given}", "it goes with world = 'bas'")
    training = recipe.training
    if training.dataset and (training.epochs is None) == (training.local_steps is None):
        raise RecipeError("training.epochs", "or local_steps is wanted", "give one of the two")
