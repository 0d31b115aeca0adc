"""Edges, devices and links of a streaming world: everything that no decision changes.

All tables are drawn at once for the whole run, from recorded files and the seed; rates, times
and rents are kept within the paper's ranges.
"""

from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.errors import DatasetError, RecipeError
from fedagent_task.recipe.spec import MICRO
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.traces import (
    read_cpu_scores,
    read_down_bps,
    read_rate_archive,
    read_rtt,
    read_spot_prices,
    recorded,
)

from .base import episodes, spawned_rng

_STREAM = 1 << 22
"""First spawn key of this module's random numbers; rounds have keys of two numbers."""
BANDWIDTH_KBS, RTT_MS, RENT = (155.0, 3939.0), (81.0, 1413.0), (0.1045, 13.2)
"""The paper's ranges, which everything is kept within."""
AGGREGATION_S = (0.001, 0.01)
"""Range of an edge's seconds per model, fixed by the seed."""
UNREST = 0.2
"""Standard deviation of the logarithm of a device's speed over rounds."""
ROUND_S, PRICE_S = 20.0, 3600.0
"""Seconds of link traces, and of the market, between rounds."""
LINKS, VARIATION = "net/mlab_ndt_na_2022-06.json.gz", "net/oboe.tar.gz"
RTT, PRICES = "net/seattle_rtt.npz", "price/ec2_spot_us-east-1_2015.csv.gz"
DEVICES = "device/ai_benchmark_2020.json.gz"


@dataclass(frozen=True, slots=True, eq=False)
class StreamNetwork:
    """Columns over T rounds, N devices and E edges."""

    rate_bps: FloatArray  # float64[T, N, E], both ways
    rtt_s: FloatArray  # float64[T, N, E]
    rent_micro: IntArray  # int64[T, E], for one aggregation
    slowness: FloatArray  # float64[T, N], seconds over those of the median device
    aggregation_s: FloatArray  # float64[E], per model

    def transfer_s(self, model_bytes: float) -> FloatArray:
        """Return sum over devices of 2 w / b + a, float64[T, E] (ALGORITHMS section 7)."""
        bits = 16 * model_bytes
        return np.asarray((bits / self.rate_bps + self.rtt_s).sum(axis=1), dtype=np.float64)

    def cost_s(self, model_bytes: float) -> FloatArray:
        """Return psi of every edge and round, float64[T, E]: transfers and aggregation."""
        devices = self.rate_bps.shape[1]
        return np.asarray(
            self.transfer_s(model_bytes) + devices * self.aggregation_s, dtype=np.float64
        )


def draw_network(recipe: TestbedRecipe, seed: int) -> StreamNetwork:
    """Draw the network of a run; the same by seed, whatever is decided.

    Raises:
        DatasetError: A file is not there, or has nothing within a range.
        RecipeError: There are more devices and edges than nodes in the RTT matrix.
    """
    per_model_s = spawned_rng(seed, _STREAM).uniform(*AGGREGATION_S, recipe.world.edges)
    return StreamNetwork(
        rate_bps=_rates(recipe, spawned_rng(seed, _STREAM + 1)),
        rtt_s=_rtts(recipe, spawned_rng(seed, _STREAM + 2)),
        rent_micro=_rents(recipe, spawned_rng(seed, _STREAM + 3)),
        slowness=_slowness(recipe, spawned_rng(seed, _STREAM + 4)) * _throttled(recipe, seed),
        aggregation_s=per_model_s * recipe.world.streaming.slowdown,
    )


def _rates(recipe: TestbedRecipe, rng: np.random.Generator) -> FloatArray:
    """Take an M-Lab speed test as an edge's mean; it varies as a trace of Oboe over its own mean.

    Every device is at a moment of its own in that trace.
    """
    rounds, devices, edges = recipe.rounds.count, recipe.world.clients, recipe.world.edges
    low, high = (8e3 * bound for bound in BANDWIDTH_KBS)
    tests = recorded(read_down_bps, LINKS)
    tests = tests[(tests >= low) & (tests <= high)]
    if not len(tests):
        raise DatasetError(LINKS, f"has no test of {low:g} to {high:g} bit/s", "fetch it again")
    mean = rng.choice(tests, edges)
    traces = recorded(read_rate_archive, VARIATION)
    chosen = rng.integers(0, len(traces), edges)
    now = np.arange(rounds)[:, None] * ROUND_S
    rates = np.empty((rounds, devices, edges))
    for edge, k in enumerate(chosen.tolist()):
        start = rng.uniform(0, traces[k].period_s, devices)
        rates[:, :, edge] = mean[edge] * traces[k].rate_at(now + start) / traces[k].mean_bps
    return np.clip(rates, low, high)


def _rtts(recipe: TestbedRecipe, rng: np.random.Generator) -> FloatArray:
    """Take PlanetLab or Seattle nodes, one a device or edge, slice by slice."""
    rounds, devices, edges = recipe.rounds.count, recipe.world.clients, recipe.world.edges
    low, high = (bound / 1e3 for bound in RTT_MS)
    matrix = recorded(read_rtt, RTT)
    nodes = matrix.shape[1]
    if devices + edges > nodes:
        raise RecipeError(
            "world.clients", f"and edges are {devices + edges}", f"{RTT} has {nodes} nodes"
        )
    node = rng.permutation(nodes)[: devices + edges]
    slices = (int(rng.integers(len(matrix))) + np.arange(rounds)) % len(matrix)
    seconds = matrix[slices[:, None, None], node[:devices, None], node[devices:]].astype(np.float64)
    # A slice without a measurement takes the pair's median, an unmeasured pair that of all.
    known = np.isfinite(seconds)
    middle = float(np.nanmedian(seconds)) if known.any() else 0.0
    pair = np.nanmedian(np.where(known.any(axis=0), seconds, middle), axis=0)
    return np.clip(np.where(known, seconds, pair), low, high)


def _rents(recipe: TestbedRecipe, rng: np.random.Generator) -> IntArray:
    """Spread means over the logarithm of the range; each moves as an EC2 market over its own."""
    rounds, edges = recipe.rounds.count, recipe.world.edges
    low, high = RENT
    mean = np.exp(np.linspace(np.log(low), np.log(high), edges))[rng.permutation(edges)]
    markets = recorded(read_spot_prices, PRICES)
    rents = np.empty((rounds, edges))
    for edge in range(edges):
        times, prices = markets[int(rng.integers(len(markets)))]
        span = float(times[-1] - times[0])
        start = times[0] + rng.uniform(0, span)
        # The market starts over at its end.
        at = (start - times[0] + np.arange(rounds) * PRICE_S) % max(span, 1.0)
        price = prices[np.searchsorted(times, times[0] + at, side="right") - 1]
        rents[:, edge] = mean[edge] * price / price.mean()
    return np.rint(np.clip(rents, low, high) * MICRO).astype(np.int64)


def _slowness(recipe: TestbedRecipe, rng: np.random.Generator) -> FloatArray:
    """Take phones of AI Benchmark, over their median, with a log-normal unrest that is made up."""
    rounds, devices = recipe.rounds.count, recipe.world.clients
    score = recorded(read_cpu_scores, DEVICES)
    mine = np.median(score) / rng.choice(score, devices)
    unrest = np.exp(UNREST * rng.standard_normal((rounds, devices)))
    return np.asarray(recipe.world.streaming.slowdown * mine * unrest, dtype=np.float64)


def _throttled(recipe: TestbedRecipe, seed: int) -> FloatArray:
    """Return float64[T, N], how many times as slow each device is for the heat; made up."""
    settings, rounds = recipe.world.streaming, recipe.rounds.count
    hot = [
        episodes(
            spawned_rng(seed, _STREAM + 5, device),
            rounds=rounds,
            every=settings.throttle_every,
            length=settings.throttle_rounds,
        )
        for device in range(recipe.world.clients)
    ]
    return np.where(np.stack(hot, axis=1), settings.throttle, 1.0)
