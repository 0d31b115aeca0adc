"""The radio world (ALGORITHMS section 6), drawn for all pairs at once.

The download's fading is measured before the order, so it is in the features; the upload's
is known to nobody, so `Truth.chance` is the exact probability over it.
"""

import math

import numpy as np

from fedagent_coordinator.policies import Feedback, Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import FloatArray, IndexArray, IntArray

from .population import Population
from .spec import TestbedRecipe
from .world import Times, outcome

FEATURES = ("bandwidth_hz", "compute", "distance_km", "download_bps")
_MIN_RATE = 1e-30
"""Bits per second of a link that is none; a float32 that can be divided by."""
_HOPELESS = 400.0
"""Bits per second and hertz that no link has; 2 to its power is still a number."""


class RadioWorld:
    """Clients at random distances of edges, with Rayleigh fading both ways.

    Args:
        recipe: Its `radio`, `work`, `rounds`, `churn`, `liars` and `change`.
        seed: Of all draws; what is decided changes none of them.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._people = Population(recipe, seed)
        self._budget = np.full(recipe.edges, recipe.budget_micro, dtype=np.int64)
        self.times: Times | None = None

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
        true_compute = np.where(people.liar, compute / recipe.liars.factor, compute)
        times = self.times = Times(
            dt_s=work.download_mbit * 1e6 / down,
            lc_s=(work.work / true_compute)[place],
            ut_s=work.upload_mbit * 1e6 / up,
        )
        features = np.stack((band, compute[place], distance, down), axis=1).astype(np.float32)
        return self._made(round_, features, compute, self._truth(times, band, snr))

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Say how these pairs ended."""
        assert self.times is not None, "a round is seen before it is played"
        rounds = self._recipe.rounds
        return outcome(
            view,
            pairs,
            self.times,
            min_updates=rounds.min_updates,
            max_wait_s=rounds.max_wait_s,
        )

    def _snr(
        self, round_: int, band: FloatArray, distance: FloatArray, rng: np.random.Generator
    ) -> FloatArray:
        """Return the mean signal-to-noise ratio of every pair, float64[P]."""
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
        """Return hindsight, and chance and time over the upload's fading.

        The chance is exact. Under Rayleigh fading the mean time is infinite: the median is
        what is expected.
        """
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

    def _made(
        self,
        round_: int,
        features: np.ndarray[tuple[int, int], np.dtype[np.float32]],
        compute: FloatArray,
        truth: Truth,
    ) -> RoundView:
        people = self._people
        clients: IndexArray = people.alive[people.pair_place].astype(np.int32)
        return RoundView(
            round=round_,
            pair_client=clients,
            pair_edge=people.pair_edge,
            pair_features=features,
            feature_names=FEATURES,
            client_price=people.prices(compute),
            client_available=people.available(),
            edge_budget=self._budget,
            deadline_s=self._recipe.rounds.deadline_s,
            model_bytes=round(self._recipe.work.download_mbit * 1e6 / 8),
            truth=truth,
        )


def _rate(band: FloatArray, snr: FloatArray) -> FloatArray:
    """Return the Shannon rate of every pair, float64[P] bit/s."""
    return np.maximum(band * np.log2(1.0 + snr), _MIN_RATE)
