"""Testbed recipes: what world, what budget, what training, which policies.

Explained key by key in `docs/testbed.md`; read by `recipe_file`.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from fedagent_protocol.messages.fields import MAX_MICRO
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import MICRO, IterationsSpec, Params, PlacementSpec, PolicySpec

Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0, lt=1e12)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
SomeRounds = Annotated[int, Meta(ge=0, le=10_000_000)]
Factor = Annotated[float, Meta(ge=1e-3, le=1e3)]
Slower = Annotated[float, Meta(ge=1, le=1e6)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
NoiseDensity = Annotated[float, Meta(ge=-200, le=-80)]
Megahertz = Annotated[float, Meta(ge=1e-3, le=1e4)]
PerCompute = Annotated[float, Meta(ge=1e-3, le=1e4)]
Weighting = Literal["uniform", "samples"]
WorldName = Literal["radio", "exchange", "traces", "open", "chances", "recorded", "bas"]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a recipe."""


class Attackers(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients, fixed by the seed, whose updates do harm, or no work (docs/robust.md)."""

    share: Share = 0.0
    kind: Literal[
        "sign-flip",
        "times-100",
        "not-finite",
        "label-flip",
        "alie",
        "inner-product",
        "weight-lie",
        "free-rider",
        "noise",
        "copy",
    ] = "sign-flip"


class Late(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients whose computation takes a deadline longer, so that they are never in time."""

    share: Share = 0.0
    price_factor: Factor = 1.0


class Dying(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients of which nothing arrives after a share of the rounds."""

    share: Share = 0.0
    after: Share = 0.5
    heal: SomeRounds = 0
    """Rounds until they deliver again; 0 for never."""
    says: bool = True
    """Whether those that heal are seen to have started again."""


class Speeds(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients whose true compute changes after half of the rounds; what they claim stays."""

    share: Share = 0.0
    factor: tuple[Factor, Factor] = (0.25, 1.0)
    """Range, evenly over its logarithm; drawn per client."""


class Repriced(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients whose price per unit is drawn again after half of the rounds."""

    share: Share = 0.0


class Flips(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two halves of the clients, one of which loses updates; every so many rounds they swap."""

    every: SomeRounds = 0
    loss: Share = 0.9


class BadEdge(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edge, chosen by the seed, whose rounds fail, or whose links are slower."""

    fails: Share = 0.0
    slower: Slower = 1.0


class Correlated(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Orders that fail together: all of an edge, or of a group of clients that nobody is shown."""

    chance: Share = 0.0
    by: Literal["edge", "group"] = "edge"
    groups: Count = 5


class Cold(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that everybody takes longer in the first rounds; halved in each round after them."""

    rounds: SomeRounds = 0
    extra_s: Seconds = 3.0


class Missing(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Features that are not reported: columns, and a share of all other values."""

    share: Share = 0.0
    columns: tuple[str, ...] = ()


class Chances(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The world ``chances``: what an update's success depends on instead of a link."""

    by: Literal["own", "compute"] = "own"
    own: tuple[Share, Share] = (0.1, 0.9)
    """With ``own``: range of the clients' chances; features tell nothing."""
    sure: Share = 0.0
    """Share of the clients that always deliver."""


class Radio(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The channel of ALGORITHMS section 6; ranges are drawn anew in every round."""

    noise_dbm_hz: NoiseDensity = -166.0  # noise density N0
    bandwidth_mhz: tuple[Megahertz, Megahertz] = (0.3, 1.0)
    static: bool = False
    """Band and distance are fixed for a device, and agents report rates of past transfers."""
    features: Literal["all", "live", "wifi"] = "all"
    """``live``: those only that every agent reports; ``wifi``: and what a Wi-Fi driver tells."""


class Work(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client does in a round, and what it asks for it."""

    download_mbit: Positive = 0.18
    upload_mbit: Positive = 0.18
    work: Positive = 2.41  # computation q; it takes q / y seconds
    compute: tuple[PerCompute, PerCompute] = (2.0, 4.0)  # range of y, drawn per client and round
    price: tuple[PerCompute, PerCompute] = (0.5, 2.0)
    """Range of the price per unit of y, fixed per client."""


class Traces(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links out of recorded traces below FEDAGENT_DATA."""

    links: str = "net/hsdpa_norway_3g.tar.gz"


class Budget(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credits that each edge may spend in a round."""

    per_edge: Annotated[float, Meta(ge=1e-6, le=1e9)] = 3.5


class Rounds(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of `fedagent_task.aggregation.RoundRule`, and how many rounds."""

    count: Count = 1000  # T
    deadline_s: Positive = 3.0
    max_wait_s: Positive = 6.0
    min_updates: Count = 1  # Z
    merge_every: Count = 5  # T_ES


class Churn(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients that leave for good and are replaced by new ones."""

    share: Share = 0.0
    every: Count = 50


class Liars(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients that claim `factor` times the compute they have."""

    share: Share = 0.0
    factor: Annotated[float, Meta(ge=1, le=100)] = 2.0


class Change(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A radio that changes for good after a share of the rounds; null for none."""

    after: Share = 0.5
    noise_dbm_hz: NoiseDensity | None = None


class Training(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is learnt; without a dataset only decisions are studied."""

    dataset: str = ""
    partition: Literal["two-labels", "iid", "dirichlet", "iid-for"] = "two-labels"
    iid_clients: Annotated[int, Meta(ge=0)] = 5
    """With ``iid-for``: how many of the first clients hold all labels."""
    gamma: Positive = 1.0
    samples_per_client: Annotated[int, Meta(ge=1)] | None = None
    arrivals: Annotated[float, Meta(ge=0, lt=1e9)] = 0.0
    """Mean samples that come to a client in a round until it has all; 0: all are there at once."""
    skew: Annotated[float, Meta(ge=0, le=5)] = 0.0
    """Standard deviation of the logarithm of the clients' rates of arrival."""
    buffer: Count = 200
    """With `arrivals`: a client trains on the newest so many."""
    model: Literal["softmax", "svm", "mlp", "cnn"] = "softmax"
    layout: Literal["fashion", "cifar"] = "fashion"  # which of the papers' networks a cnn is
    rate: Positive = 0.005
    batch: Count = 32
    epochs: Count = 1
    weighting: Weighting = "uniform"
    slot_rounds: Count = 1
    """Rounds of a slot; opinions are asked for at its end (ALGORITHMS section 5)."""
    reset: bool = False
    opinions: bool = False
    evaluated_on: Literal["own", "test"] = "own"
    """``own``: a client scores it on a fifth of its samples, which it does not train on;
    ``test``: on its share of the common test set."""
    evaluate_every: Count = 1
    test_samples: Annotated[int, Meta(ge=0, le=10_000_000)] = 0  # the first so many; 0 for all
    targets: tuple[Share, ...] = (0.7,)


class Aggregation(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How updates become a model, as in a run's recipe; but the mean is plain if not told."""

    name: str = "fedavg"
    params: Params = field(default_factory=dict)
    robust: str = "none"
    robust_params: Params = field(default_factory=dict)


class Streaming(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data that arrive while a model is learnt, and edges that are rented for rounds."""

    dataset: Literal["", "digits", "a9a", "ml-100k", "sparse", "fashion-mnist", "weather"] = ""
    steps: Annotated[int, Meta(ge=1, le=100_000)] = 50  # |M_t|, arrival steps of a round
    arrivals: Positive = 2.0  # mean number of samples that come to a device in a step
    acceleration: Positive = 1.0
    skew: Annotated[float, Meta(ge=0, le=5)] = 0.5
    """Standard deviation of the logarithm of the devices' rates."""
    burst: Annotated[float, Meta(ge=1, le=1000)] = 1.0
    """All devices' arrivals are so many times as many during a burst."""
    burst_every: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Mean rounds from one burst's start to the next; 0 for none. So of drift and throttle."""
    burst_rounds: Count = 8
    drift: Share = 0.5
    """Share of the features (films, of ratings) that change places when the concept changes."""
    drift_every: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    throttle: Annotated[float, Meta(ge=1, le=1000)] = 1.0
    """A device is so many times as slow while it throttles; each at its own time."""
    throttle_every: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    throttle_rounds: Count = 30
    iteration_s: Positive = 2.2e-4  # seconds that the median device takes for one sample
    slowdown: Positive = 1.0
    model_scale: Positive = 1.0
    budget: Positive = 100.0  # B, credits for rent in the whole run; a credit is the normal price
    load_limit_s: Positive = 1.3  # pi, against which the report holds the rounds' peaks
    enforce: bool = True  # devices stop at it, as live ones do; else only the control heeds it
    evaluate_every: Annotated[int, Meta(ge=1, le=1_000_000)] = 5
    test_samples: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    prequential: bool = False


class WorldSpec(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run's recipe leaves to the field: links, devices, prices, data, and what fails."""

    kind: WorldName = "radio"
    """``open``: all reach the one edge at once; ``chances``: success without links;
    ``recorded``: rounds of demos; ``bas``: streams, and edges that are rented."""
    about: str = ""
    compare: tuple[str, ...] = ()
    clients: Count = 50
    edges: Annotated[int, Meta(ge=1, le=65_536)] = 3
    visible: Annotated[int, Meta(ge=0)] = 0
    """Edges that each client sees, fixed by the seed; 0 for all."""
    utility: Literal["linear", "sqrt-total"] = "linear"
    success: Share = 1.0
    radio: Radio = Radio()
    work: Work = Work()
    traces: Traces = Traces()
    churn: Churn = Churn()
    liars: Liars = Liars()
    change: Change = Change()
    late: Late = Late()
    dying: Dying = Dying()
    speeds: Speeds = Speeds()
    repriced: Repriced = Repriced()
    flips: Flips = Flips()
    bad_edge: BadEdge = BadEdge()
    correlated: Correlated = Correlated()
    cold: Cold = Cold()
    missing: Missing = Missing()
    chances: Chances = Chances()
    training: Training = Training()
    attackers: Attackers = Attackers()
    streaming: Streaming = Streaming()


class TestbedRecipe(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run's recipe, as far as a study goes by it, and a world.

    Attributes:
        policies: Parameters by the name of a policy, an iteration control or a placement, where
            several are compared; those of the one that is named in its own section go before.
        model: Keys of a run's section `model`, over those of the streams' dataset.
        learner: Keys of a run's section `learner`, for streams.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    rounds: Rounds = Rounds()
    budget: Budget = Budget()
    policy: PolicySpec = PolicySpec()
    iterations: IterationsSpec = IterationsSpec()
    placement: PlacementSpec = PlacementSpec()
    policies: dict[str, dict[str, object]] = field(default_factory=dict)
    model: dict[str, object] = field(default_factory=dict)
    learner: dict[str, object] = field(default_factory=dict)
    aggregation: Aggregation = Aggregation()
    world: WorldSpec = WorldSpec()

    @property
    def budget_micro(self) -> int:
        """What an edge may spend in a round, micro-credits."""
        return round(self.budget.per_edge * MICRO)

    @property
    def of_streams(self) -> bool:
        """Whether the world has streams and rented edges, and pairs of controls for policies."""
        return self.world.kind == "bas"

    @property
    def decides(self) -> str:
        """Who decides in `run`: a policy, or ITERATIONS+PLACEMENT."""
        pair = f"{self.iterations.name}+{self.placement.name}"
        return pair if self.of_streams else self.policy.name

    def params(self, name: str) -> dict[str, object]:
        """Return the parameters of a policy, an iteration control or a placement."""
        named = (self.iterations, self.placement) if self.of_streams else (self.policy,)
        own = next((one.params for one in named if one.name == name), {})
        return {**self.policies.get(name, {}), **own}


_RANGES = ("speeds.factor", "radio.bandwidth_mhz", "work.compute", "work.price", "chances.own")


def check_recipe(recipe: TestbedRecipe) -> None:
    """Raise a `RecipeError` where keys contradict each other."""
    world = recipe.world
    if world.visible > world.edges:
        raise RecipeError("world.visible", f"is {world.visible}", "is at most `edges`")
    for key in _RANGES:
        section, _, name = key.partition(".")
        low, high = getattr(getattr(world, section), name)
        if low > high:
            hint = "write [low, high] with low <= high"
            raise RecipeError(f"world.{key}", f"is [{low}, {high}]", hint)
    factor = max(1.0, world.late.price_factor) if world.late.share else 1.0
    dearest = world.work.price[1] * world.work.compute[1] * factor
    if dearest * MICRO > MAX_MICRO:
        hint = f"keep it times work.compute and late.price_factor below {MAX_MICRO // MICRO}"
        raise RecipeError("world.work.price", f"comes to {dearest:g} credits a round", hint)
    if world.kind == "exchange" and world.clients % 4:
        raise RecipeError("world.clients", f"is {world.clients}", "write a multiple of 4")
    if world.kind in {"exchange", "open"} and world.edges != 1:
        raise RecipeError(
            "world.edges", f"is {world.edges}", f"the {world.kind} world has one edge"
        )
    if world.kind == "bas" and not world.streaming.dataset:
        raise RecipeError("world.streaming.dataset", "is missing", "name one, see docs/testbed.md")
