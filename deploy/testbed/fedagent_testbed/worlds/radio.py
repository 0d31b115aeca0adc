"""The radio world (ALGORITHMS section 6), drawn for all pairs at once.

The download's fading is measured before the order, so it is in the features; the upload's
is not known, so `Truth.chance` is the exact probability over it.
"""

import math

import numpy as np

from fedagent_coordinator.policies import Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import FloatArray

from .base import Times
from .linked import LinkedWorld

_MIN_RATE = 1e-30
"""Bits per second of a link that is none; a float32 that can be divided by."""
_HOPELESS = 400.0
"""Bits per second and hertz that no link has; 2 to its power is still a number."""


class RadioWorld(LinkedWorld):
    """Clients at random distances of edges, with Rayleigh fading both ways.

    Decisions change none of its draws.
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


def _rate(band: FloatArray, snr: FloatArray) -> FloatArray:
    """Return the Shannon rate of every pair, float64[P] bit/s."""
    return np.maximum(band * np.log2(1.0 + snr), _MIN_RATE)
