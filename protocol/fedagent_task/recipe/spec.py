"""The structs of a recipe: every key with its type, range, default and example.

`recipe.py` reads them from text, `docs/recipe.md` explains them. A default never
changes: digests leave defaults out, so that a new key does not rename old recipes.
"""

import math
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from fedagent_protocol.messages import OptionalDigest, Weighting
from fedagent_task.program import decode_program
from fedagent_task.program.spec import TRAVELS
from fedagent_task.recipe.shapes import (
    LAYOUTS,
    MAX_PARAMETERS,
    MAX_PROGRAM_BYTES,
    CnnLayout,
    Image,
    Shape,
    cnn_shapes,
    dense_shapes,
)

MICRO = 1_000_000
"""Micro-credits in one credit."""

MAX_SECONDS = 7 * 86_400.0

MAX_GRAPH_BYTES = 32 * 1024
"""Largest ONNX graph of a task: it has no weights in it."""

MODELS = {
    "softmax": "generalised_linear:Softmax",
    "logistic": "generalised_linear:Logistic",
    "linear": "generalised_linear:Linear",
    "svm": "generalised_linear:Svm",
    "mf": "factors:Factors",
    "mlp": "mlp:Mlp",
    "cnn": "cnn:Cnn",
    "graph": "graph:Graph",
}
"""Kind of a model to its class below `fedagent_task.models`."""
LEARNERS = {
    "minibatch": "gradient_descent:Minibatch",
    "sgd": "gradient_descent:Sgd",
    "bgd": "gradient_descent:Bgd",
    "strsaga": "strsaga:StrSaga",
    "none": "",
}
"""Name of a learner to its class below `fedagent_agent.learners`, which a coordinator has not; a
task with the learner ``none`` needs no trainer."""
ParamValue = bool | int | float | str | list[float | str]
Word = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,63}$")]


def _key(description: str, example: object = None, **bounds: Any) -> Meta:
    """Describe a key for hints; the example is the default, unless one is given as TOML."""
    return Meta(description=description, examples=None if example is None else [example], **bounds)


Params = Annotated[dict[str, ParamValue], _key("a table of parameters", "{}", max_length=64)]
Seconds = Annotated[float, _key("seconds", gt=0, le=MAX_SECONDS)]
Share = Annotated[float, Meta(ge=0, le=1)]


class _Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the recipe."""


class ModelSpec(_Section, frozen=True, kw_only=True):
    """What is learnt."""

    kind: Annotated[
        str, _key(f"one of {', '.join(MODELS)}, or package:name", '"softmax"', max_length=128)
    ]
    features: Annotated[int, _key("features of a sample", 64, ge=1, le=MAX_PARAMETERS)]
    classes: Annotated[int, _key("classes of a softmax", 10, ge=0, le=1_000_000)] = 0
    l2: Annotated[float, _key("the L2 penalty", 0.0001, ge=0, le=1e6)] = 0.0
    loss: Literal["squared-hinge", "hinge"] = "squared-hinge"
    users: Annotated[int, _key("users of an mf", 943, ge=0, le=MAX_PARAMETERS)] = 0
    items: Annotated[int, _key("items of an mf", 1682, ge=0, le=MAX_PARAMETERS)] = 0
    rank: Annotated[int, _key("factors of an mf", 10, ge=0, le=4096)] = 0
    hidden: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=MAX_PARAMETERS)], ...],
        _key("the units of each hidden layer of an mlp", "[100]", max_length=8),
    ] = ()
    layout: Literal["", "fashion", "cifar"] = ""
    image: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=4096)], ...],
        _key("rows, columns and channels of a cnn's samples", "[28, 28, 1]", max_length=3),
    ] = ()
    params: Params = {}
    """What a package's own model is told."""
    task: Annotated[str, _key("the task file", '"my_model.fedtask"', max_length=4096)] = ""
    program: Annotated[bytes, Meta(max_length=MAX_PROGRAM_BYTES)] = b""
    """What a graph computes (`fedagent_task.program`); a recipe gets it from `task`."""
    first: OptionalDigest = ""
    """Tensors that a graph begins from, by the digest of their safetensors."""
    once: OptionalDigest = ""
    """Tensors that devices get once and never send: a frozen base, a local head's first weights."""
    once_bytes: Annotated[int, Meta(ge=0, le=MAX_PARAMETERS * 4)] = 0

    @property
    def is_foreign(self) -> bool:
        """Whether it is of a package, ``package:name``."""
        return ":" in self.kind

    @property
    def outputs(self) -> int:
        """Columns of the model's output."""
        if self.kind == "graph" or self.is_foreign:
            return max(1, self.classes)
        wide = self.kind == "softmax" or (self.kind == "svm" and self.classes > 2)
        return self.classes if wide or self.is_network else 1

    @property
    def regression(self) -> bool:
        """Whether labels are numbers, not classes."""
        if self.kind == "graph" or self.is_foreign:
            return self.classes == 0
        return self.kind in ("linear", "mf")

    @property
    def num_classes(self) -> int:
        """Classes that a label may name; 0 for a regression."""
        return 0 if self.regression else max(2, self.classes)

    @property
    def parameters(self) -> int:
        """Number of weights and biases."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def is_network(self) -> bool:
        """Whether this is a neural network: its loss is not convex."""
        return self.kind in {"mlp", "cnn", "graph"}

    @property
    def plan(self) -> CnnLayout:
        """The layout that a cnn names."""
        return LAYOUTS[self.layout]

    @property
    def picture(self) -> Image:
        """Rows, columns and channels of a cnn's samples."""
        rows, columns, channels = self.image or self.plan.image
        return rows, columns, channels

    @property
    def widths(self) -> tuple[int, ...]:
        """Units of a network's hidden dense layers."""
        return self.plan.hidden if self.kind == "cnn" else self.hidden

    @property
    def shapes(self) -> dict[str, Shape]:
        """The tensors of a model file by name; a package's own model may have others."""
        users, items, rank = self.users, self.items, self.rank
        match self.kind:
            case "graph":
                tensors = decode_program(self.program).of_roles(*TRAVELS)
                return {tensor.name: tensor.shape for tensor in tensors}
            case "cnn":
                return cnn_shapes(self.plan, self.picture, self.classes)
            case "mlp":
                return dense_shapes([self.features, *self.hidden, self.classes])
            case "mf":
                biases: dict[str, Shape] = {"bias": (1,), "item_bias": (items,)}
                factors = {"users": (users, rank), "items": (items, rank)}
                return biases | factors | {"user_bias": (users,)}
        return {"bias": (self.outputs,), "weight": (self.outputs, self.features)}


DType = Literal["float32", "float64", "uint8", "int16", "int32", "int64"]
MAX_NAMES_BYTES = 4096
"""Longest names that streams may give the features of a recipe that names none, all together."""


class FeatureSpec(_Section, frozen=True, kw_only=True, omit_defaults=True):
    """One feature of a sample: ``x * scale + offset``, or ``(x - mean) / deviation``.

    With neither form it enters the model as it is.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    scale: float | None = None
    offset: float | None = None
    mean: float | None = None
    deviation: float | None = None

    @property
    def declared(self) -> bool:
        """Whether it has one of the two forms."""
        return (self.scale, self.offset, self.mean, self.deviation) != (None,) * 4


class DataSpec(_Section, frozen=True, kw_only=True):
    """What a sample is before it enters the model: ``x * scale + offset``, or feature by feature.

    With `standardize` devices are asked for count, sums and squares before round 1, and features
    without a form of their own get mean and deviation from them.
    """

    dtype: DType = "float32"
    scale: Annotated[float, _key("a factor other than 0", 0.0625)] = 1.0
    offset: Annotated[float, _key("a number added after scaling")] = 0.0
    labels: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...],
        _key("the classes' names in order", '["no", "yes"]', max_length=1000),
    ] = ()
    features: Annotated[
        tuple[FeatureSpec, ...],
        _key(
            "a table for each feature, with mean and deviation or scale and offset",
            '[{name = "pressure", mean = 101325, deviation = 500}]',
            max_length=4096,
        ),
    ] = ()
    standardize: bool = False
    standardize_s: Seconds = 30.0


class LearnerSpec(_Section, frozen=True, kw_only=True):
    """How a device learns from its stream."""

    name: Annotated[str, _key(f"one of {', '.join(LEARNERS)}, or package:name", max_length=128)] = (
        "minibatch"
    )
    rate: Annotated[float, _key("the step size", gt=0, le=1000)] = 0.1
    batch: Annotated[int, _key("samples of one step", ge=1, le=100_000)] = 50
    passes: Annotated[int, _key("passes over the buffer", ge=1, le=1000)] = 20
    buffer: Annotated[int, _key("samples to keep", ge=1, le=1_000_000)] = 1000
    cap: Annotated[int, _key("samples with gradients", ge=1, le=10_000_000)] = 10_000
    steps: Annotated[int, _key("arrival steps of a round", 50, ge=1, le=10_000)] = 1
    step_s: Annotated[float, _key("seconds between arrival steps, or 0", 3.0, ge=0, le=86_400)] = (
        0.0
    )
    backend: Literal["auto", "numpy", "torch"] = "auto"
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: Annotated[float, _key("the momentum of sgd", 0.9, ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, _key("a decay", 0.0001, ge=0, le=1000)] = 0.0
    clip_norm: Annotated[float, _key("a norm, or 0", 1.0, ge=0, le=1e12)] = 0.0
    decay: Annotated[float, _key("a factor up to 1", 0.99, gt=0, le=1)] = 1.0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Annotated[int, _key("threads, or 0", 1, ge=0, le=1024)] = 0
    params: Params = {}
    """What a package's own training code is told."""

    @property
    def is_foreign(self) -> bool:
        """Whether it is of a package that devices have installed, ``package:name``."""
        return ":" in self.name

    def rate_at(self, round_: int) -> float:
        """Return the step size of a round, from 1; never 0, which would end the learning unsaid."""
        return self.rate * max(self.decay ** max(0, round_ - 1), 1e-12)

    @property
    def wants_torch(self) -> bool:
        """Whether a key asks for what only torch has."""
        return (
            self.backend == "torch"
            or self.device in ("cuda", "mps")
            or (self.precision != "float32")
        )


class RoundsSpec(_Section, frozen=True, kw_only=True):
    """The rounds of the run (ALGORITHMS section 1)."""

    count: Annotated[int, _key("the number of rounds, or 0 for no end", 60, ge=0, le=10_000_000)]
    stop: Literal["count", "target"] = "count"
    patience: Annotated[int, _key("models in a row", 3, ge=1, le=1_000_000)] = 1
    deadline_s: Annotated[Seconds, _key("seconds", 2.0)]
    max_wait_s: Annotated[Seconds, _key("seconds, at least deadline_s", 4.0)]
    min_updates: Annotated[int, _key("at least 1", ge=1, le=1_000_000)] = 1
    merge_every: Annotated[int, _key("rounds", ge=1, le=1_000_000)] = 1
    merge_timeout_s: Seconds = 10.0
    weighting: Annotated[Weighting, _key("samples or uniform", '"samples"')] = Weighting.SAMPLES
    iterations: Annotated[int, _key("a number, or 0 for the learner's", ge=0, le=1_000_000)] = 0
    every_s: Annotated[float, _key("seconds, or 0", 60.0, ge=0, le=MAX_SECONDS)] = 0.0


class BudgetSpec(_Section, frozen=True, kw_only=True):
    """Money, in the recipe as credits (``per_edge``, ``total``), here as micro-credits."""

    per_edge_micro: Annotated[int, _key("credits", 3.5, gt=0, le=10**15)] = field(name="per_edge")
    total_micro: Annotated[int, _key("credits", 200, gt=0, le=10**15)] | None = field(
        name="total", default=None
    )


class PolicySpec(_Section, frozen=True, kw_only=True):
    """Who trains where; the policy itself checks its parameters."""

    name: Annotated[Word, _key("a policy's name")] = "adaptive"
    params: Params = {}
    exploration: Annotated[Share, _key("a share from 0 to 1", 0.1)] = 0.0
    exploration_bound: Annotated[float, _key("a share >= 0", ge=0, le=1e6)] = 0.1


LONGEST_WORK = 50
AUTO = "auto"
"""A robust rule's name: the default one, or none where updates are hidden from the edge."""


class AggregationSpec(_Section, frozen=True, kw_only=True):
    """How updates become a model; the strategy itself checks its parameters."""

    name: Annotated[Word, _key("a strategy's name")] = "fedavg"
    params: Params = {}
    robust: Annotated[Word, _key("a robust rule's name, or auto", '"clipped-mean"')] = AUTO
    robust_params: Params = {}
    late_rounds: Annotated[int, _key("rounds, at most 5", 2, ge=0, le=5)] = 5

    @property
    def oldest_work(self) -> int:
        """In so many rounds what was begun must end, however it gets on."""
        return LONGEST_WORK if self.late_rounds else 0


class PlacementSpec(_Section, frozen=True, kw_only=True):
    """Where edge models are merged."""

    name: Annotated[Word, _key("a placement's name")] = "coordinator"
    params: Params = {}

    @property
    def rents(self) -> bool:
        """Whether each round rents an edge to merge at; else the coordinator merges."""
        return self.name != "coordinator"


class IterationsSpec(_Section, frozen=True, kw_only=True):
    """How many local iterations a round has; the control itself checks its parameters."""

    name: Annotated[Word, _key("an iteration control's name", '"primal-dual"')] = "learner"
    params: Params = {}


class LimitsSpec(_Section, frozen=True, kw_only=True):
    """What an update may be."""

    norm: Annotated[float, _key("a norm, or 0 for no limit", ge=0, le=1e12)] = 100.0
    max_samples: Annotated[int, _key("samples", 100_000, ge=1, le=2**40)] = 1_000_000


class EvaluationSpec(_Section, frozen=True, kw_only=True):
    """How a global model is evaluated."""

    dataset: Annotated[
        str, _key("a dataset or none", '"digits-test"', min_length=1, max_length=1000)
    ] = "none"
    target: Annotated[float, _key("an accuracy or an error", 0.85, ge=0, le=1e12)] = 0.0
    on_device: bool = False


class OpinionsSpec(_Section, frozen=True, kw_only=True):
    """What becomes of clients' opinions of the global model (docs/opinions.md)."""

    mode: Literal["auto", "off", "report", "peers"] = "auto"
    every: Annotated[int, _key("merges", ge=1, le=1_000_000)] = 1
    timeout_s: Seconds = 5.0
    window: Annotated[int, _key("samples", ge=1, le=1_000_000)] = 500
    low: Annotated[Share, _key("the least opinion")] = 0.0
    high: Annotated[Share, _key("the largest opinion")] = 1.0
    step: Annotated[Share, _key("a step, or 0", 0.05)] = 0.0
    epsilon: Annotated[float, _key("an epsilon, or 0", 1.0, ge=0, le=1000)] = 0.0


class PeersSpec(_Section, frozen=True, kw_only=True):
    """How neighbours decide among themselves who trains (docs/democratized.md)."""

    best: Annotated[int, _key("volunteers", ge=1, le=1024)] = 5
    mu: Annotated[float, _key("a weight", ge=0, le=1000)] = 0.01
    cold_start: bool = True
    graph: Literal["near", "radius", "declared"] = "near"
    neighbours: Annotated[int, _key("neighbours", ge=1, le=32)] = 4
    radius_km: Annotated[float, _key("kilometres", gt=0, le=1e6)] = 0.3
    slot_rounds: Annotated[int, _key("rounds", ge=1, le=1_000_000)] = 1


class PrivacySpec(_Section, frozen=True, kw_only=True):
    """Differential privacy of updates, a device's whole data at a time (docs/privacy.md).

    Epsilon and delta are of all `releases` of a device together.
    """

    mode: Literal["off", "local", "central"] = "off"
    epsilon: Annotated[float, _key("an epsilon up to 100", gt=0, le=100)] = 8.0
    delta: Annotated[float, _key("a probability", gt=0, lt=1)] = 1e-5
    clip: Annotated[float, _key("a norm", gt=0, le=1e6)] = 1.0
    releases: Annotated[
        int, _key("updates of a device, or 0 for rounds.count", 60, ge=0, le=10_000_000)
    ] = 0

    @property
    def wanted(self) -> bool:
        """Whether updates are clipped and noised at all."""
        return self.mode != "off"


class SecureAggregationSpec(_Section, frozen=True, kw_only=True):
    """Edges see sums of at least `minimum_cohort` updates, and no update (docs/privacy.md)."""

    minimum_cohort: Annotated[
        int, _key("at least 3 devices, or 0 for no secure aggregation", 5, ge=0, le=256)
    ] = 0
    threshold: Annotated[float, _key("a share over 0.5 of the cohort", gt=0.5, le=1)] = 0.6
    largest: Annotated[float, _key("a magnitude", gt=0, le=1e6)] = 1.0
    stage_s: Seconds = 2.0

    @property
    def wanted(self) -> bool:
        """Whether updates are masked."""
        return self.minimum_cohort > 0

    def shares_needed(self, cohort: int) -> int:
        """Return how many of a cohort must answer: more than half, whatever the threshold."""
        return max(cohort // 2 + 1, math.ceil(self.threshold * cohort - 1e-9))


class Recipe(_Section, frozen=True, kw_only=True):
    """One run, as its file says it."""

    name: Annotated[Word, _key("a short name", '"digits"')]
    model: ModelSpec
    rounds: RoundsSpec
    budget: BudgetSpec
    seed: Annotated[int, _key("a whole number", 7, ge=0, lt=2**53)] = 0
    data: DataSpec = DataSpec()
    learner: LearnerSpec = LearnerSpec()
    policy: PolicySpec = PolicySpec()
    placement: PlacementSpec = PlacementSpec()
    aggregation: AggregationSpec = AggregationSpec()
    limits: LimitsSpec = LimitsSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    iterations: IterationsSpec = IterationsSpec()
    opinions: OpinionsSpec = OpinionsSpec()
    peers: PeersSpec = PeersSpec()
    privacy: PrivacySpec = PrivacySpec()
    secure_aggregation: SecureAggregationSpec = SecureAggregationSpec()


class TaskSpec(_Section, frozen=True, kw_only=True):
    """The part of a recipe that travels to devices."""

    version: Annotated[int, Meta(ge=1, le=1)] = 1
    model: ModelSpec
    data: DataSpec = DataSpec()
    learner: LearnerSpec = LearnerSpec()
    limits: LimitsSpec = LimitsSpec()
    on_device: bool = False
    opinions: OpinionsSpec = OpinionsSpec()
    peers: PeersSpec = PeersSpec()
    aggregation: AggregationSpec = AggregationSpec()
    privacy: PrivacySpec = PrivacySpec()
    secure_aggregation: SecureAggregationSpec = SecureAggregationSpec()
    weighting: Weighting = Weighting.SAMPLES
