"""The structs of a recipe: every key with its type, range, default and example.

`recipe.py` reads them from text, `docs/recipe.md` explains them. A default never
changes: digests leave defaults out, so that a new key does not rename old recipes.
"""

import math
from typing import Annotated, Literal

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
Params = Annotated[
    dict[str, ParamValue],
    Meta(max_length=64, description="a table of parameters", examples=["{}"]),
]
Word = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]


def _text(description: str, *examples: object) -> Meta:
    return Meta(description=description, examples=list(examples))


class _Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the recipe."""


class ModelSpec(_Section, frozen=True, kw_only=True):
    """What is learnt."""

    kind: Annotated[
        str,
        Meta(max_length=128),
        _text(f"one of {', '.join(MODELS)}, or package:name", '"softmax"'),
    ]
    features: Annotated[int, Meta(ge=1, le=MAX_PARAMETERS), _text("features of a sample", 64)]
    classes: Annotated[int, Meta(ge=0, le=1_000_000), _text("classes of a softmax", 10)] = 0
    l2: Annotated[float, Meta(ge=0, le=1e6), _text("the L2 penalty", 0.0001)] = 0.0
    loss: Annotated[
        Literal["squared-hinge", "hinge"], _text("squared-hinge or hinge", '"squared-hinge"')
    ] = "squared-hinge"
    users: Annotated[int, Meta(ge=0, le=MAX_PARAMETERS), _text("users of an mf", 943)] = 0
    items: Annotated[int, Meta(ge=0, le=MAX_PARAMETERS), _text("items of an mf", 1682)] = 0
    rank: Annotated[int, Meta(ge=0, le=4096), _text("factors of an mf", 10)] = 0
    hidden: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=MAX_PARAMETERS)], ...],
        Meta(max_length=8),
        _text("the units of each hidden layer of an mlp", "[100]"),
    ] = ()
    layout: Annotated[
        Literal["", "fashion", "cifar"], _text("one of fashion, cifar", '"fashion"')
    ] = ""
    image: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=4096)], ...],
        Meta(max_length=3),
        _text("rows, columns and channels of a cnn's samples", "[28, 28, 1]"),
    ] = ()
    params: Params = {}
    """What a package's own model is told."""
    task: Annotated[
        str, Meta(max_length=4096), _text("the task file of a graph", '"my_model.fedtask"')
    ] = ""
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
        if self.kind == "mf":
            return (self.users + self.items) * (self.rank + 1) + 1
        if self.is_network:
            return sum(map(math.prod, self.shapes.values()))
        return (self.features + 1) * self.outputs

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
        """The tensors of a network by name."""
        if self.kind == "cnn":
            return cnn_shapes(self.plan, self.picture, self.classes)
        if self.kind == "graph":
            tensors = decode_program(self.program).of_roles(*TRAVELS)
            return {tensor.name: tensor.shape for tensor in tensors}
        return dense_shapes([self.features, *self.hidden, self.classes])


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

    dtype: Annotated[
        DType, _text("one of float32, float64, uint8, int16, int32, int64", '"float32"')
    ] = "float32"
    scale: Annotated[float, _text("a factor other than 0", 0.0625)] = 1.0
    offset: Annotated[float, _text("a number added after scaling", 0.0)] = 0.0
    labels: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...],
        Meta(max_length=1000),
        _text("the classes' names in order", '["no", "yes"]'),
    ] = ()
    features: Annotated[
        tuple[FeatureSpec, ...],
        Meta(max_length=4096),
        _text(
            "a table for each feature, with mean and deviation or scale and offset",
            '[{name = "pressure", mean = 101325, deviation = 500}]',
        ),
    ] = ()
    standardize: Annotated[bool, _text("true or false", "true")] = False
    standardize_s: Annotated[Seconds, _text("seconds", 30.0)] = 30.0


class LearnerSpec(_Section, frozen=True, kw_only=True):
    """How a device learns from its stream."""

    name: Annotated[
        str,
        Meta(max_length=128),
        _text(f"one of {', '.join(LEARNERS)}, or package:name", '"minibatch"'),
    ] = "minibatch"
    rate: Annotated[float, Meta(gt=0, le=1000), _text("the step size", 0.1)] = 0.1
    batch: Annotated[int, Meta(ge=1, le=100_000), _text("samples of one step", 50)] = 50
    passes: Annotated[int, Meta(ge=1, le=1000), _text("passes over the buffer", 20)] = 20
    buffer: Annotated[int, Meta(ge=1, le=1_000_000), _text("samples to keep", 1000)] = 1000
    cap: Annotated[int, Meta(ge=1, le=10_000_000), _text("samples with gradients", 10_000)] = 10_000
    steps: Annotated[int, Meta(ge=1, le=10_000), _text("arrival steps of a round", 50)] = 1
    step_s: Annotated[
        float, Meta(ge=0, le=86_400), _text("seconds between arrival steps, or 0", 3.0)
    ] = 0.0
    backend: Annotated[
        Literal["auto", "numpy", "torch"], _text("one of auto, numpy, torch", '"auto"')
    ] = "auto"
    optimizer: Annotated[
        Literal["sgd", "adam", "adamw"], _text("one of sgd, adam, adamw", '"sgd"')
    ] = "sgd"
    momentum: Annotated[float, Meta(ge=0, lt=1), _text("the momentum of sgd", 0.9)] = 0.0
    weight_decay: Annotated[float, Meta(ge=0, le=1000), _text("a decay", 0.0001)] = 0.0
    clip_norm: Annotated[float, Meta(ge=0, le=1e12), _text("a norm, or 0", 1.0)] = 0.0
    decay: Annotated[float, Meta(gt=0, le=1), _text("a factor up to 1", 0.99)] = 1.0
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], _text("one of auto, cpu, cuda, mps", '"auto"')
    ] = "auto"
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"],
        _text("one of float32, bfloat16, float16", '"bfloat16"'),
    ] = "float32"
    threads: Annotated[int, Meta(ge=0, le=1024), _text("threads, or 0", 1)] = 0
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

    count: Annotated[
        int, Meta(ge=0, le=10_000_000), _text("the number of rounds, or 0 for no end", 60)
    ]
    deadline_s: Annotated[Seconds, _text("seconds", 2.0)]
    max_wait_s: Annotated[Seconds, _text("seconds, at least deadline_s", 4.0)]
    min_updates: Annotated[int, Meta(ge=1, le=1_000_000), _text("at least 1", 1)] = 1
    merge_every: Annotated[int, Meta(ge=1, le=1_000_000), _text("rounds", 1)] = 1
    merge_timeout_s: Annotated[Seconds, _text("seconds", 10.0)] = 10.0
    weighting: Annotated[Weighting, _text("samples or uniform", '"samples"')] = Weighting.SAMPLES
    iterations: Annotated[
        int, Meta(ge=0, le=1_000_000), _text("0 for the learner's default, or a number", 0)
    ] = 0
    every_s: Annotated[float, Meta(ge=0, le=MAX_SECONDS), _text("seconds, or 0", 60.0)] = 0.0


class BudgetSpec(_Section, frozen=True, kw_only=True):
    """Money, in the recipe as credits (``per_edge``, ``total``), here as micro-credits."""

    per_edge_micro: Annotated[int, Meta(gt=0, le=10**15), _text("credits", 3.5)] = field(
        name="per_edge"
    )
    total_micro: Annotated[int, Meta(gt=0, le=10**15), _text("credits", 200)] | None = field(
        name="total", default=None
    )


class PolicySpec(_Section, frozen=True, kw_only=True):
    """Who trains where; the policy itself checks its parameters."""

    name: Annotated[Word, _text("a policy's name", '"adaptive"')] = "adaptive"
    params: Params = {}
    exploration: Annotated[float, Meta(ge=0, le=1), _text("a share from 0 to 1", 0.1)] = 0.0
    exploration_bound: Annotated[float, Meta(ge=0, le=1e6), _text("a share >= 0", 0.1)] = 0.1


LONGEST_WORK = 50
AUTO = "auto"
"""A robust rule's name: the default one, or none where updates are hidden from the edge."""


class AggregationSpec(_Section, frozen=True, kw_only=True):
    """How updates become a model; the strategy itself checks its parameters."""

    name: Annotated[Word, _text("a strategy's name", '"fedavg"')] = "fedavg"
    params: Params = {}
    robust: Annotated[Word, _text("a robust rule's name, or auto", '"clipped-mean"')] = AUTO
    robust_params: Params = {}
    late_rounds: Annotated[int, Meta(ge=0, le=5), _text("rounds, at most 5", 2)] = 5

    @property
    def oldest_work(self) -> int:
        """In so many rounds what was begun must end, however it gets on."""
        return LONGEST_WORK if self.late_rounds else 0


class PlacementSpec(_Section, frozen=True, kw_only=True):
    """Where edge models are merged."""

    name: Annotated[Word, _text("a placement's name", '"coordinator"')] = "coordinator"
    params: Params = {}

    @property
    def rents(self) -> bool:
        """Whether each round rents an edge to merge at; else the coordinator merges."""
        return self.name != "coordinator"


class IterationsSpec(_Section, frozen=True, kw_only=True):
    """How many local iterations a round has; the control itself checks its parameters."""

    name: Annotated[Word, _text("an iteration control's name", '"primal-dual"')] = "learner"
    params: Params = {}


class LimitsSpec(_Section, frozen=True, kw_only=True):
    """What an update may be."""

    norm: Annotated[float, Meta(ge=0, le=1e12), _text("a norm, or 0 for no limit", 100.0)] = 100.0
    max_samples: Annotated[int, Meta(ge=1, le=2**40), _text("samples", 100_000)] = 1_000_000


class EvaluationSpec(_Section, frozen=True, kw_only=True):
    """How a global model is evaluated."""

    dataset: Annotated[
        str, Meta(min_length=1, max_length=1000), _text("a dataset or none", '"digits-test"')
    ] = "none"
    target: Annotated[float, Meta(ge=0, le=1e12), _text("an accuracy or an error", 0.85)] = 0.0
    on_device: Annotated[bool, _text("true or false", "true")] = False


class OpinionsSpec(_Section, frozen=True, kw_only=True):
    """What becomes of clients' opinions of the global model (docs/opinions.md)."""

    mode: Annotated[
        Literal["auto", "off", "report", "peers"],
        _text("one of auto, off, report, peers", '"report"'),
    ] = "auto"
    every: Annotated[int, Meta(ge=1, le=1_000_000), _text("merges", 1)] = 1
    timeout_s: Annotated[Seconds, _text("seconds", 5.0)] = 5.0
    window: Annotated[int, Meta(ge=1, le=1_000_000), _text("samples", 500)] = 500
    low: Annotated[float, Meta(ge=0, le=1), _text("the least opinion", 0.0)] = 0.0
    high: Annotated[float, Meta(ge=0, le=1), _text("the largest opinion", 1.0)] = 1.0
    step: Annotated[float, Meta(ge=0, le=1), _text("a step, or 0", 0.05)] = 0.0
    epsilon: Annotated[float, Meta(ge=0, le=1000), _text("an epsilon, or 0", 1.0)] = 0.0


class PeersSpec(_Section, frozen=True, kw_only=True):
    """How neighbours decide among themselves who trains (docs/democratized.md)."""

    best: Annotated[int, Meta(ge=1, le=1024), _text("volunteers", 5)] = 5
    mu: Annotated[float, Meta(ge=0, le=1000), _text("a weight", 0.01)] = 0.01
    cold_start: Annotated[bool, _text("true or false", "true")] = True
    graph: Annotated[
        Literal["near", "radius", "declared"], _text("one of near, radius, declared", '"near"')
    ] = "near"
    neighbours: Annotated[int, Meta(ge=1, le=32), _text("neighbours", 4)] = 4
    radius_km: Annotated[float, Meta(gt=0, le=1e6), _text("kilometres", 0.3)] = 0.3
    slot_rounds: Annotated[int, Meta(ge=1, le=1_000_000), _text("rounds", 1)] = 1


class PrivacySpec(_Section, frozen=True, kw_only=True):
    """Differential privacy of updates, a device's whole data at a time (docs/privacy.md).

    Epsilon and delta are of all `releases` of a device together.
    """

    mode: Annotated[
        Literal["off", "local", "central"], _text("one of off, local, central", '"local"')
    ] = "off"
    epsilon: Annotated[float, Meta(gt=0, le=100), _text("an epsilon up to 100", 8.0)] = 8.0
    delta: Annotated[float, Meta(gt=0, lt=1), _text("a probability", 0.00001)] = 1e-5
    clip: Annotated[float, Meta(gt=0, le=1e6), _text("a norm", 1.0)] = 1.0
    releases: Annotated[
        int, Meta(ge=0, le=10_000_000), _text("updates of a device, or 0 for rounds.count", 60)
    ] = 0

    @property
    def wanted(self) -> bool:
        """Whether updates are clipped and noised at all."""
        return self.mode != "off"


class SecureAggregationSpec(_Section, frozen=True, kw_only=True):
    """Edges see sums of at least `minimum_cohort` updates, and no update (docs/privacy.md)."""

    minimum_cohort: Annotated[
        int, Meta(ge=0, le=256), _text("at least 3 devices, or 0 for no secure aggregation", 5)
    ] = 0
    threshold: Annotated[
        float, Meta(gt=0.5, le=1), _text("a share over 0.5 of the cohort", 0.6)
    ] = 0.6
    largest: Annotated[float, Meta(gt=0, le=1e6), _text("a magnitude", 1.0)] = 1.0
    stage_s: Annotated[Seconds, _text("seconds", 2.0)] = 2.0

    @property
    def wanted(self) -> bool:
        """Whether updates are masked."""
        return self.minimum_cohort > 0

    def shares_needed(self, cohort: int) -> int:
        """Return how many of a cohort must answer: more than half, whatever the threshold."""
        return max(cohort // 2 + 1, math.ceil(self.threshold * cohort - 1e-9))


class Recipe(_Section, frozen=True, kw_only=True):
    """One run, as its file says it."""

    name: Annotated[Word, _text("a short name", '"digits"')]
    model: ModelSpec
    rounds: RoundsSpec
    budget: BudgetSpec
    seed: Annotated[int, Meta(ge=0, lt=2**53), _text("a whole number", 7)] = 0
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
