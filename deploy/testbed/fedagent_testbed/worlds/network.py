"""Edges, devices and links of a streaming world: everything that no decision changes.

All tables are drawn at once for the whole run, from recorded files and the seed:

- an edge's mean rate is a speed test of M-Lab within the recipe's range; it varies as a
  trace of Oboe over its own mean, every device at a moment of its own in that trace;
- round-trip times are those of PlanetLab or Seattle nodes, one node a device or edge, slice
  by slice;
- rents have means evenly spread over the logarithm of the recipe's range, and move as an EC2
  spot market over its own mean;
- devices are as fast as phones of AI Benchmark, over their median, with a log-normal unrest
  that is made up.

Rates, times and rents are kept within the recipe's ranges.
"""

from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.errors import DatasetError, RecipeError
from fedagent_task.spec import MICRO
from fedagent_testbed.recipe import Streaming, TestbedRecipe
from fedagent_testbed.traces.sources import (
    access_speeds,
    cpu_scores,
    rate_traces,
    rtt_matrix,
    spot_prices,
)

_STREAM = 1 << 22
"""First spawn key of this module's random numbers; rounds have keys of two numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamNetwork:
    """Columns over T rounds, N devices and E edges.

    Attributes:
        rate_bps: float64[T, N, E], both ways.
        rtt_s: float64[T, N, E].
        rent_micro: int64[T, E], for one aggregation.
        slowness: float64[T, N], seconds over those of the median device.
        aggregation_s: float64[E], per model.
    """

    rate_bps: FloatArray
    rtt_s: FloatArray
    rent_micro: IntArray
    slowness: FloatArray
    aggregation_s: FloatArray

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
    settings, rounds = recipe.streaming, recipe.rounds.count
    devices, edges = recipe.clients, recipe.edges
    low, high = settings.aggregation_s
    rng = _rng(seed, 0)
    return StreamNetwork(
        rate_bps=_rates(settings, rounds, devices, edges, _rng(seed, 1)),
        rtt_s=_rtts(settings, rounds, devices, edges, _rng(seed, 2)),
        rent_micro=_rents(settings, rounds, edges, _rng(seed, 3)),
        slowness=_slowness(settings, rounds, devices, _rng(seed, 4)),
        aggregation_s=rng.uniform(low, high, edges) * settings.slowdown,
    )


def _rates(
    settings: Streaming, rounds: int, devices: int, edges: int, rng: np.random.Generator
) -> FloatArray:
    low, high = (8e3 * bound for bound in settings.bandwidth_kbs)
    tests = access_speeds(settings.links).down_bps
    tests = tests[(tests >= low) & (tests <= high)]
    if not len(tests):
        raise DatasetError(settings.links, "has no test in streaming.bandwidth_kbs", "widen it")
    mean = rng.choice(tests, edges)
    traces = rate_traces(settings.variation)
    chosen = rng.integers(0, len(traces), edges)
    now = np.arange(rounds)[:, None] * settings.round_s
    rates = np.empty((rounds, devices, edges))
    for edge, k in enumerate(chosen.tolist()):
        start = rng.uniform(0, traces[k].period_s, devices)
        rates[:, :, edge] = mean[edge] * traces[k].rate_at(now + start) / traces[k].mean_bps
    return np.clip(rates, low, high)


def _rtts(
    settings: Streaming, rounds: int, devices: int, edges: int, rng: np.random.Generator
) -> FloatArray:
    low, high = (bound / 1e3 for bound in settings.rtt_ms)
    matrix = rtt_matrix(settings.rtt)
    nodes = matrix.seconds.shape[1]
    if devices + edges > nodes:
        raise RecipeError(
            "clients", f"and edges are {devices + edges}", f"{settings.rtt} has {nodes} nodes"
        )
    node = rng.permutation(nodes)[: devices + edges]
    first = int(rng.integers(len(matrix.seconds)))
    slices = (first + np.arange(rounds))[:, None, None]
    seconds = matrix.between(slices, node[:devices, None], node[devices:])
    # A slice without a measurement takes the pair's median, an unmeasured pair that of all.
    pair = np.nanmedian(_filled(seconds), axis=0)
    seconds = np.where(np.isfinite(seconds), seconds, pair)
    return np.clip(seconds, low, high)


def _filled(seconds: FloatArray) -> FloatArray:
    never = ~np.isfinite(seconds).any(axis=0)
    middle = float(np.nanmedian(seconds)) if np.isfinite(seconds).any() else 0.0
    return np.where(never, middle, seconds)


def _rents(settings: Streaming, rounds: int, edges: int, rng: np.random.Generator) -> IntArray:
    low, high = settings.rent
    mean = np.exp(np.linspace(np.log(low), np.log(high), edges))[rng.permutation(edges)]
    markets = spot_prices(settings.prices)
    rents = np.empty((rounds, edges))
    for edge in range(edges):
        market = markets[int(rng.integers(len(markets)))]
        span = float(market.times_s[-1] - market.times_s[0])
        start = market.times_s[0] + rng.uniform(0, span)
        # The market starts over at its end.
        at = (start - market.times_s[0] + np.arange(rounds) * settings.price_s) % max(span, 1.0)
        price = market.price_at(market.times_s[0] + at)
        rents[:, edge] = mean[edge] * price / price.mean()
    return np.rint(np.clip(rents, low, high) * MICRO).astype(np.int64)


def _slowness(
    settings: Streaming, rounds: int, devices: int, rng: np.random.Generator
) -> FloatArray:
    score = cpu_scores(settings.devices).score
    mine = np.median(score) / rng.choice(score, devices)
    unrest = np.exp(settings.unrest * rng.standard_normal((rounds, devices)))
    return np.asarray(settings.slowdown * mine * unrest, dtype=np.float64)


def _rng(seed: int, use: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STREAM + use,)))
