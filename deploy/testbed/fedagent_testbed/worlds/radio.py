"""The radio model of COCS (ALGORITHMS section 6), and devices that stay where they are in it."""

import math
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies import Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.recipe import TestbedRecipe

from .base import Times, spawned_rng
from .linked import LinkedWorld

_MIN_RATE = 1e-30
"""Bits per second of a link that is none; a float32 that can be divided by."""
_HOPELESS = 400.0
"""Bits per second and hertz that no link has; 2 to its power is still a number."""
POWER_DBM, PATH_LOSS_DB, PATH_LOSS_SLOPE_DB = 23.0, 128.1, 37.6
DISTANCE_KM = (0.01, 2.0)
MEASURED_DB = 1.0
"""Standard deviation of a measured rate."""
_HOME = (1 << 20) + 7
_MEASURED = (1 << 20) + 8
_SMOOTHING = 0.3
"""Of an agent's measured rates, as in `fedagent_agent.core.device`."""
_LIVE = ("compute", "download_bps", "upload_bps")
_SHOWN = {
    "all": (*_LIVE, "bandwidth_hz", "distance_km"),
    "live": _LIVE,
    "wifi": (*_LIVE, "bandwidth_hz", "signal_dbm"),
}


def _nodes() -> tuple[FloatArray, FloatArray]:
    """Return Gauss-Legendre quantiles in [0, 1] and their weights, float64[48, 1] each."""
    x, weight = np.polynomial.legendre.leggauss(48)
    return (x[:, None] + 1.0) / 2.0, weight[:, None] / 2.0


_QUANTILES, _WEIGHTS = _nodes()


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Links of all pairs of a round: hertz, mean signal-to-noise ratio, and what slows them."""

    band: FloatArray
    snr: FloatArray
    slower: FloatArray | float

    def rate(self, fade: FloatArray | float) -> FloatArray:
        """Return bits per second at this fading, of its shape and the pairs'."""
        rate = self.snr * fade
        rate += 1.0
        np.log2(rate, out=rate)
        rate *= self.band
        rate /= self.slower
        return np.maximum(rate, _MIN_RATE, out=rate)


class RadioWorld(LinkedWorld):
    """Clients at random distances of edges, with Rayleigh fading both ways (ALGORITHMS section 6).

    The download's fading is measured before the order, so it is in the features; the upload's
    is not known, so `Truth.chance` is the exact probability over it.
    """

    def view(self, round_: int) -> RoundView:
        """Draw a round."""
        recipe, people, work = self._recipe, self._people, self._recipe.world.work
        people.begin(round_)
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        compute = rng.uniform(*work.compute, len(people.alive))
        band, distance = self._places(rng)
        link = Link(band, self._snr(round_, band, distance), self._slower())
        down = link.rate(rng.exponential(size=len(band)))
        up = link.rate(rng.exponential(size=len(band)))
        times = Times(
            dt_s=work.download_mbit * 1e6 / down,
            lc_s=self._computation(compute),
            ut_s=work.upload_mbit * 1e6 / up,
        )
        features = {
            "bandwidth_hz": band,
            "compute": compute[people.pair_place],
            "distance_km": distance,
            **self._rates(round_, link, down, up),
        }
        shown = _SHOWN[recipe.world.radio.features]
        if "signal_dbm" in shown:  # the mean over beacons, in whole decibels, as drivers say it
            decibel = 10.0 * np.log10(link.snr * band) + self._noise(round_)
            features["signal_dbm"] = np.round(decibel)
        features = {name: values for name, values in features.items() if name in shown}
        chance, usual = self._forecast(link, times)
        arrives = times.tau_s <= recipe.rounds.deadline_s
        truth = Truth(arrives=arrives, chance=chance, tau_s=usual)
        return self._shown(round_, features, compute, times, truth)

    def _places(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return band in hertz and distance in kilometres of every pair, float64[P]."""
        radio, people = self._recipe.world.radio, self._people
        place = people.pair_place
        band = rng.uniform(*radio.bandwidth_mhz, len(people.alive))[place] * 1e6
        return band, rng.uniform(*DISTANCE_KM, len(place))

    def _rates(
        self, round_: int, link: Link, down: FloatArray, up: FloatArray
    ) -> dict[str, FloatArray]:
        """Return what is known of the rates of this round, by feature."""
        del round_, link, up
        return {"download_bps": down}

    def _snr(self, round_: int, band: FloatArray, distance: FloatArray) -> FloatArray:
        loss = PATH_LOSS_DB + PATH_LOSS_SLOPE_DB * np.log10(distance)
        decibel = POWER_DBM - loss - self._noise(round_) - 10.0 * np.log10(band)
        return np.asarray(10.0 ** (decibel / 10.0), dtype=np.float64)

    def _noise(self, round_: int) -> float:
        """Return the noise density of a round, dBm/Hz."""
        change = self._recipe.world.change
        changed = round_ > change.after * self._recipe.rounds.count
        if change.noise_dbm_hz is not None and changed:
            return change.noise_dbm_hz
        return self._recipe.world.radio.noise_dbm_hz

    def _forecast(self, link: Link, times: Times) -> tuple[FloatArray, FloatArray]:
        """Return the chance and the usual tau by what is known before the order, float64[P] each.

        Under Rayleigh fading the mean time is infinite: the median is what is expected.
        """
        began = times.dt_s + times.lc_s
        return self._uploads_after(began, link), began + self._upload_s(link)

    def _uploads_after(self, began: FloatArray, link: Link) -> FloatArray:
        """Return the probability that an upload from `began` is in time, of began's shape."""
        left = self._recipe.rounds.deadline_s - began
        share = link.band / link.slower
        wanted = self._recipe.world.work.upload_mbit * 1e6 / np.maximum(left, 1e-12) / share
        needed = np.expm1(np.minimum(wanted, _HOPELESS) * math.log(2.0)) / link.snr
        return np.where(left > 0, np.exp(-needed), 0.0)

    def _upload_s(self, link: Link) -> FloatArray:
        return self._recipe.world.work.upload_mbit * 1e6 / link.rate(math.log(2.0))


class StaticRadioWorld(RadioWorld):
    """Devices with a position and a band of their own, that report rates as live agents do.

    A reported rate is the running mean of what transfers of the rounds before would have
    measured, with an error; a device starts with one probe. This round's fading is not known in
    either direction, so `Truth.chance` is over both.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        super().__init__(recipe, seed)
        self._edges_seen = len(self._people.pair_place) // recipe.world.clients
        self._band: FloatArray = np.zeros(0)
        self._distance: FloatArray = np.zeros((0, self._edges_seen))
        self._reported_in = 0
        self._before: FloatArray = np.zeros((2, 0, self._edges_seen))
        self._after = self._before

    def _places(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        del rng  # they are no round's
        radio, people, known = self._recipe.world.radio, self._people, len(self._band)
        if new := people.total - known:
            own = spawned_rng(self._seed, _HOME, known)
            band = own.uniform(*radio.bandwidth_mhz, new) * 1e6
            self._band = np.concatenate((self._band, band))
            distance = own.uniform(*DISTANCE_KM, (new, self._edges_seen))
            self._distance = np.concatenate((self._distance, distance))
        band, distance = self._band[people.alive], self._distance[people.alive]
        return band[people.pair_place], distance.ravel()

    def _forecast(self, link: Link, times: Times) -> tuple[FloatArray, FloatArray]:
        bits = self._recipe.world.work.download_mbit * 1e6
        downloads = bits / link.rate(-np.log(_QUANTILES))
        chance = (_WEIGHTS * self._uploads_after(downloads + times.lc_s, link)).sum(axis=0)
        usual = bits / link.rate(math.log(2.0)) + times.lc_s + self._upload_s(link)
        return chance, usual

    def _rates(
        self, round_: int, link: Link, down: FloatArray, up: FloatArray
    ) -> dict[str, FloatArray]:
        """Return the running means before this round, and add what it measures to the next's."""
        alive = self._people.alive
        rng = spawned_rng(self._seed, _MEASURED, round_)
        error = 10.0 ** (rng.normal(0.0, MEASURED_DB, (2, len(down))) / 10.0)
        probes = [link.rate(rng.exponential(size=len(down))) for _ in range(2)]
        if round_ != self._reported_in:
            self._before, self._reported_in = self._after, round_
        shape = (2, len(alive), self._edges_seen)
        known = np.full((2, self._people.total, self._edges_seen), np.nan)
        known[:, : self._before.shape[1]] = self._before
        mine = known[:, alive]
        mine = np.where(np.isnan(mine), np.reshape(probes, shape), mine)
        known[:, alive] = mine
        self._before, self._after = known, known.copy()
        measured = (np.stack((down, up)) * error).reshape(shape)
        self._after[:, alive] = mine + _SMOOTHING * (measured - mine)
        download, upload = mine.reshape(2, -1)
        return {"download_bps": download, "upload_bps": upload}
