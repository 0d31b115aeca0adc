"""The section `[streaming]` of a testbed recipe, explained key by key in `docs/testbed.md`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Positive = Annotated[float, Meta(gt=0, lt=1e12)]
Range = tuple[Positive, Positive]
Dataset = Literal["", "digits", "a9a", "ml-100k", "sparse", "fashion-mnist", "weather"]


class Streaming(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data that arrive while a model is learnt, and edges that are rented for rounds.

    Attributes:
        dataset: What is learnt.
        model: Keys of a run's recipe, section `model`, over the dataset's own.
        learner: Keys of a run's recipe, section `learner`.
        steps: |M_t|, arrival steps of a round.
        arrivals: Mean number of samples that come to a device in a step.
        acceleration: Multiplies the arrivals.
        swing: The arrivals' rate swings by this share, up and down.
        swing_rounds: Period of the swing.
        skew: Standard deviation of the logarithm of the devices' rates.
        round_s: Seconds between two rounds, in which links move on by their traces.
        iteration_s: Seconds that the median device takes for one sample.
        slowdown: Divides the speed of devices and edges.
        unrest: Standard deviation of the logarithm of a device's speed over rounds.
        aggregation_s: Range of an edge's seconds per model, fixed by the seed.
        model_scale: Multiplies the bytes of the model that travel.
        budget: B, credits for rent in the whole run; a credit is the normal price.
        bandwidth_kbs, rtt_ms, rent: Ranges; rent in shares of the normal price.
        price_s: Seconds of market between two rounds.
        links, variation, rtt, prices, devices: Files below FEDAGENT_DATA.
        load_limit_s: pi, against which the report holds the rounds' peaks.
        enforce: Devices stop at it, as live ones do; else only the control heeds it.
        evaluate_every: Rounds between two tests of the loss.
        test_samples: How many samples the loss is tested on; 0 for all.
        prequential: Test every sample before it is learnt (regressions).
    """

    dataset: Dataset = ""
    model: dict[str, object] = {}
    learner: dict[str, object] = {}
    steps: Annotated[int, Meta(ge=1, le=100_000)] = 50
    arrivals: Positive = 2.0
    acceleration: Positive = 1.0
    swing: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    swing_rounds: Annotated[int, Meta(ge=1, le=1_000_000)] = 50
    skew: Annotated[float, Meta(ge=0, le=5)] = 0.5
    round_s: Positive = 20.0
    iteration_s: Positive = 2.2e-4
    slowdown: Positive = 1.0
    unrest: Annotated[float, Meta(ge=0, le=2)] = 0.2
    aggregation_s: Range = (0.001, 0.01)
    model_scale: Positive = 1.0
    budget: Positive = 100.0
    bandwidth_kbs: Range = (155.0, 3939.0)
    rtt_ms: Range = (81.0, 1413.0)
    rent: Range = (0.1045, 13.2)
    price_s: Positive = 3600.0
    links: str = "net/mlab_ndt_na_2022-06.json.gz"
    variation: str = "net/oboe.tar.gz"
    rtt: str = "net/seattle_rtt.npz"
    prices: str = "price/ec2_spot_us-east-1_2015.csv.gz"
    devices: str = "device/ai_benchmark_2020.json.gz"
    load_limit_s: Positive = 1.3
    enforce: bool = True
    evaluate_every: Annotated[int, Meta(ge=1, le=1_000_000)] = 5
    test_samples: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    prequential: bool = False


RANGES = ("aggregation_s", "bandwidth_kbs", "rtt_ms", "rent")
"""Keys that are [low, high]."""
