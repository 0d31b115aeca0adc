"""Worlds whose pairs have a download, a computation and an upload, and their clients.

The links are by radio, or as recorded.
"""

import math
from abc import ABC, abstractmethod

import numpy as np

from fedagent_coordinator.policies import Feedback, Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import BoolArray, FloatArray, IndexArray, IntArray
from fedagent_task.spec import MICRO
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.traces.files import recorded
from fedagent_testbed.traces.readers import read_links, read_rtt

from .base import Times, outcome, spawned_rng

_MIN_RATE = 1e-30
"""Bits per second of a link that is none; a float32 that can be divided by."""
_BIRTH = 1 << 20
"""First word of the spawn keys of a population, beyond any round."""
_HOPELESS = 400.0
"""Bits per second and hertz that no link has; 2 to its power is still a number."""


class Population:
    """The clients of a run: their prices, liars, edges and churn.

    Indices are never reused, replaced clients stay away.

    `alive` is int64[n], the run-wide index of each of the n places.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._begun = 0
        self.alive = np.arange(recipe.clients, dtype=np.int64)
        self._unit_price: FloatArray = np.zeros(0)
        self._liar: BoolArray = np.zeros(0, dtype=np.bool_)
        self._born(recipe.clients)
        self.pair_place, self.pair_edge = self._links()

    @property
    def total(self) -> int:
        """N, clients that have ever been there."""
        return len(self._unit_price)

    @property
    def unit_price(self) -> FloatArray:
        """float64[n], credits per unit of compute of those alive."""
        return self._unit_price[self.alive]

    @property
    def liar(self) -> BoolArray:
        """bool[n], who claims more compute than there is."""
        return self._liar[self.alive]

    def prices(self, compute: FloatArray) -> IntArray:
        """Return int64[N] micro-credits for these units of compute, 0 for who is gone."""
        price = np.zeros(self.total, dtype=np.int64)
        price[self.alive] = np.round(self.unit_price * compute * MICRO)
        return price

    def available(self) -> BoolArray:
        """Return bool[N], who is alive."""
        there = np.zeros(self.total, dtype=np.bool_)
        there[self.alive] = True
        return there

    def begin(self, round_: int) -> None:
        """Replace some clients by new ones, when it is time; once per round."""
        churn = self._recipe.churn
        leaving = round(churn.share * len(self.alive))
        again, self._begun = round_ == self._begun, round_
        if again or not leaving or round_ == 1 or (round_ - 1) % churn.every:
            return
        rng = spawned_rng(self._seed, _BIRTH + 1, round_)
        places = rng.choice(len(self.alive), leaving, replace=False)
        self.alive = self.alive.copy()
        self.alive[places] = self.total + np.arange(leaving)
        self._born(leaving)

    def _born(self, count: int) -> None:
        rng = spawned_rng(self._seed, _BIRTH, self.total)
        low, high = self._recipe.work.price
        self._unit_price = np.concatenate((self._unit_price, rng.uniform(low, high, count)))
        liars = rng.random(count) < self._recipe.liars.share
        self._liar = np.concatenate((self._liar, liars))

    def _links(self) -> tuple[IndexArray, IndexArray]:
        clients, edges = self._recipe.clients, self._recipe.edges
        visible = self._recipe.links.visible or edges
        place = np.repeat(np.arange(clients, dtype=np.int32), visible)
        if visible == edges:
            return place, np.tile(np.arange(edges, dtype=np.int32), clients)
        rng = spawned_rng(self._seed, _BIRTH + 2, 0)
        start = rng.integers(0, edges, clients)
        steps = _distinct(rng, clients, edges, visible - 1)
        offsets = np.concatenate((np.zeros((clients, 1), dtype=np.int64), steps), axis=1)
        return place, ((start[:, None] + offsets) % edges).astype(np.int32).ravel()


def _distinct(rng: np.random.Generator, rows: int, top: int, count: int) -> IntArray:
    """Return int64[rows, count], distinct values of 1..top-1 in each row, by redrawing."""
    if 2 * count >= top:
        every = np.tile(np.arange(1, top, dtype=np.int64), (rows, 1))
        return rng.permuted(every, axis=1)[:, :count]
    drawn = rng.integers(1, top, (rows, count))
    while True:
        ranked = np.sort(drawn, axis=1)
        twice = np.flatnonzero((ranked[:, 1:] == ranked[:, :-1]).any(axis=1))
        if not len(twice):
            return drawn
        drawn[twice] = rng.integers(1, top, (len(twice), count))


class LinkedWorld(ABC):
    """What the worlds of radio and of recorded links share; `times` are of the last view."""

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._people = Population(recipe, seed)
        self._budget = np.full(recipe.edges, recipe.budget_micro, dtype=np.int64)
        self.times: Times | None = None

    @abstractmethod
    def view(self, round_: int) -> RoundView:
        """Draw a round."""

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Return how these pairs ended."""
        assert self.times is not None, "a round is seen before it is played"
        limits = self._recipe.rounds
        return outcome(
            view, pairs, self.times, min_updates=limits.min_updates, max_wait_s=limits.max_wait_s
        )

    def _computation(self, compute: FloatArray) -> FloatArray:
        """Return the seconds of every pair, float64[P]; liars have less than they claim."""
        people, factor = self._people, self._recipe.liars.factor
        true = np.where(people.liar, compute / factor, compute)
        return np.asarray((self._recipe.work.work / true)[people.pair_place], dtype=np.float64)

    def _shown(
        self, round_: int, features: dict[str, FloatArray], compute: FloatArray, truth: Truth
    ) -> RoundView:
        people = self._people
        return RoundView(
            round=round_,
            pair_client=people.alive[people.pair_place].astype(np.int32),
            pair_edge=people.pair_edge,
            pair_features=np.stack(list(features.values()), axis=1).astype(np.float32),
            feature_names=tuple(features),
            client_price=people.prices(compute),
            client_available=people.available(),
            edge_budget=self._budget,
            deadline_s=self._recipe.rounds.deadline_s,
            model_bytes=round(self._recipe.work.download_mbit * 1e6 / 8),
            truth=truth,
        )


class RadioWorld(LinkedWorld):
    """Clients at random distances of edges, with Rayleigh fading both ways (ALGORITHMS section 6).

    The download's fading is measured before the order, so it is in the features; the upload's
    is not known, so `Truth.chance` is the exact probability over it.
    """

    def view(self, round_: int) -> RoundView:
        """Draw a round."""
        recipe, people, work = self._recipe, self._people, self._recipe.work
        people.begin(round_)
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        n, place = len(people.alive), people.pair_place
        compute = rng.uniform(*work.compute, n)
        band = rng.uniform(*recipe.radio.bandwidth_mhz, n)[place] * 1e6
        distance = rng.uniform(*recipe.radio.distance_km, len(place))
        snr = self._snr(round_, band, distance, rng)
        down = _rate(band, snr * rng.exponential(size=len(place)))
        up = _rate(band, snr * rng.exponential(size=len(place)))
        times = self.times = Times(
            dt_s=work.download_mbit * 1e6 / down,
            lc_s=self._computation(compute),
            ut_s=work.upload_mbit * 1e6 / up,
        )
        features = {
            "bandwidth_hz": band,
            "compute": compute[place],
            "distance_km": distance,
            "download_bps": down,
        }
        return self._shown(round_, features, compute, self._truth(times, band, snr))

    def _snr(
        self, round_: int, band: FloatArray, distance: FloatArray, rng: np.random.Generator
    ) -> FloatArray:
        radio, change = self._recipe.radio, self._recipe.change
        noise = radio.noise_dbm_hz
        changed = round_ > change.after * self._recipe.rounds.count
        if change.noise_dbm_hz is not None and changed:
            noise = change.noise_dbm_hz
        loss = radio.path_loss_db + radio.path_loss_slope_db * np.log10(distance)
        if radio.shadowing_db:
            loss += rng.normal(0.0, radio.shadowing_db, len(distance))
        decibel = radio.power_dbm - loss - noise - 10.0 * np.log10(band)
        return np.asarray(10.0 ** (decibel / 10.0), dtype=np.float64)

    def _truth(self, times: Times, band: FloatArray, snr: FloatArray) -> Truth:
        # Under Rayleigh fading the mean time is infinite: the median is what is expected.
        deadline = self._recipe.rounds.deadline_s
        left = deadline - times.dt_s - times.lc_s
        bits = self._recipe.work.upload_mbit * 1e6
        wanted = bits / np.maximum(left, 1e-12) / band
        needed = np.expm1(np.minimum(wanted, _HOPELESS) * math.log(2.0)) / snr
        usual = bits / _rate(band, snr * math.log(2.0))
        return Truth(
            arrives=times.tau_s <= deadline,
            chance=np.where(left > 0, np.exp(-needed), 0.0),
            tau_s=times.dt_s + times.lc_s + usual,
        )


def _rate(band: FloatArray, snr: FloatArray) -> FloatArray:
    return np.maximum(band * np.log2(1.0 + snr), _MIN_RATE)


class TraceWorld(LinkedWorld):
    """Clients whose links follow recorded traces: what a real network did, from a random moment on.

    A pair keeps its trace, its moment and its route for the whole run. What a policy sees is
    the rate that the last round's transfer would have had, as a real agent measures it; what
    happens is the trace of now. A trace has no chance in it, so `Truth.chance` is 0 or 1.

    Raises:
        DatasetError: The files are not there, or not what they should be.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        super().__init__(recipe, seed)
        self._traces = recorded(read_links, recipe.traces.links, folder=True)
        pairs = len(self._people.pair_place)
        rng = spawned_rng(seed, 1 << 21)
        self._down, self._up = rng.integers(0, len(self._traces), (2, pairs))
        self._start = rng.uniform(0.0, 1e5, pairs)
        self._rtt = _rtt_of(recipe.traces.rtt, pairs, rng)

    def view(self, round_: int) -> RoundView:
        """Draw a round."""
        recipe, people, work = self._recipe, self._people, self._recipe.work
        people.begin(round_)
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        compute = rng.uniform(*work.compute, len(people.alive))
        now = self._start + round_ * recipe.traces.round_s
        before = now - recipe.traces.round_s
        down, up = work.download_mbit * 1e6, work.upload_mbit * 1e6
        rtt = self._rtt
        lc = self._computation(compute)
        dt = self._seconds(self._down, down, now) + rtt
        ut = self._seconds(self._up, up, now + dt + lc) + rtt
        times = self.times = Times(dt, lc, ut)
        features = {
            "compute": compute[people.pair_place],
            "download_bps": down / self._seconds(self._down, down, before),
            "rtt_s": rtt,
            "upload_bps": up / self._seconds(self._up, up, before),
        }
        arrives = times.tau_s <= recipe.rounds.deadline_s
        truth = Truth(arrives=arrives, chance=arrives.astype(np.float64), tau_s=times.tau_s)
        return self._shown(round_, features, compute, truth)

    def _seconds(self, trace: IntArray, bits: float, start: FloatArray) -> FloatArray:
        out = np.empty(len(trace))
        for k in np.unique(trace).tolist():
            mine = trace == k
            out[mine] = self._traces[k].seconds_for(bits, start[mine])
        return np.maximum(out, 1e-6)


def _rtt_of(name: str, pairs: int, rng: np.random.Generator) -> FloatArray:
    if not name:
        return np.zeros(pairs)
    first = recorded(read_rtt, name).seconds[0]
    known = first[np.isfinite(first) & (first > 0)]
    return np.asarray(rng.choice(known, pairs), dtype=np.float64)
