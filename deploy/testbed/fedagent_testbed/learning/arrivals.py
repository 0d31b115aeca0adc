"""When samples come to devices, and which: the same by seed, whatever is decided."""

from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.errors import RecipeError
from fedagent_task.models import Floats
from fedagent_task.models.base import Csr
from fedagent_testbed.recipe import Streaming
from fedagent_testbed.worlds.base import episodes, spawned_rng, starts

from .datasets import StudyData

_STREAM = 1 << 23
_MIN_RATE = 1e-3
SWING, SWING_ROUNDS = 0.5, 50
"""The arrivals' rate swings by this share, up and down, with this period."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundArrivals:
    """What comes in a round: int64[N, steps], and each device's samples by index, in order."""

    counts: IntArray
    samples: tuple[IntArray, ...]


def make_arrivals(
    data: StudyData, settings: Streaming, *, devices: int, rounds: int, seed: int
) -> "PoissonArrivals | RecordedArrivals":
    """Return the streams of a study; a `RecipeError` where recorded ones do not fit."""
    if data.shards is None:
        return PoissonArrivals(
            settings, samples=len(data.y), devices=devices, rounds=rounds, seed=seed
        )
    if devices != len(data.shards):
        raise RecipeError(
            "world.clients", f"is {devices}", f"{data.name} has {len(data.shards)} streams"
        )
    length = min(len(shard) for shard in data.shards)
    if rounds * settings.steps > length:
        raise RecipeError(
            "rounds.count", f"needs {rounds * settings.steps} steps", f"{data.name} has {length}"
        )
    return RecordedArrivals(data.shards, settings.steps)


class PoissonArrivals:
    """All samples are dealt to the devices; each replays its own in an order drawn anew.

    The mean of a step is `arrivals` x `acceleration`, times a swing over rounds and `burst`
    during bursts, both of which all devices share, times a log-normal rate of the device; the
    rates' mean over devices is 1.
    """

    def __init__(
        self, settings: Streaming, *, samples: int, devices: int, rounds: int, seed: int
    ) -> None:
        self._rng = spawned_rng(seed, _STREAM)
        self._settings = settings
        order = self._rng.permutation(samples)
        self._shards = [order[i::devices] for i in range(devices)]
        self._next = [0] * devices
        rate = np.exp(settings.skew * self._rng.standard_normal(devices))
        self._rate: FloatArray = np.maximum(rate / rate.mean(), _MIN_RATE)
        bursts = episodes(
            spawned_rng(seed, _STREAM + 1),
            rounds=rounds,
            every=settings.burst_every,
            length=settings.burst_rounds,
        )
        self._burst = np.where(bursts, settings.burst, 1.0)

    def take(self, round_: int) -> RoundArrivals:
        """Return what comes in a round; rounds are asked for in order, from 1."""
        settings = self._settings
        phase = 2 * np.pi * round_ / SWING_ROUNDS
        mean = settings.arrivals * settings.acceleration * (1 + SWING * np.sin(phase))
        mean *= self._burst[round_ - 1]
        shape = (len(self._rate), settings.steps)
        counts = self._rng.poisson(mean * self._rate[:, None], shape).astype(np.int64)
        return RoundArrivals(
            counts, tuple(self._replay(i, int(n)) for i, n in enumerate(counts.sum(axis=1)))
        )

    def _replay(self, device: int, count: int) -> IntArray:
        parts: list[IntArray] = []
        while count:
            shard, at = self._shards[device], self._next[device]
            part = shard[at : at + count]
            parts.append(part)
            count -= len(part)
            self._next[device] = at + len(part)
            if self._next[device] == len(shard):
                self._shards[device] = self._rng.permutation(shard)
                self._next[device] = 0
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


class RecordedArrivals:
    """Streams as they were recorded, one sample a step where there was one."""

    def __init__(self, shards: tuple[IntArray, ...], steps: int) -> None:
        self._shards, self._steps = shards, steps

    def take(self, round_: int) -> RoundArrivals:
        """Return what comes in a round."""
        start = (round_ - 1) * self._steps
        parts = [shard[start : start + self._steps] for shard in self._shards]
        counts = np.stack([(part >= 0).astype(np.int64) for part in parts])
        return RoundArrivals(counts, tuple(part[part >= 0] for part in parts))


_CHANGES = (1 << 22) + 64


class Drift:
    """The data of every round: as they are, until the concept changes.

    At a change a share of the columns, chosen anew, change places by a cycle; labels stay. What can
    be learnt at all remains the same. Of ratings the films change places.
    """

    def __init__(self, data: StudyData, settings: Streaming, *, rounds: int, seed: int) -> None:
        self.data, self._share = data, settings.drift
        self._rng = spawned_rng(seed, _CHANGES)
        self._changes = starts(self._rng, rounds=rounds, every=settings.drift_every)
        self._films = data.model["kind"] == "mf"
        self._tests: dict[int, tuple[Floats, FloatArray]] = {}
        width = int(str(data.model["items"])) if self._films else data.features
        self._place = np.arange(width)
        self._moved = False

    def begin(self, round_: int) -> None:
        """Take the next round, from 1, in order."""
        if not self._changes[round_ - 1]:
            return
        size = len(self._place)
        cycle = self._rng.permutation(size)[: max(2, round(self._share * size))]
        self._place[cycle] = self._place[np.roll(cycle, 1)]
        self._moved = True
        self._tests.clear()

    def rows(self, index: IntArray) -> tuple[Floats, FloatArray]:
        """Return some samples as they are this round."""
        x, y = self.data.rows(index)
        return self._now(x), y

    def tests(self, count: int) -> tuple[Floats, FloatArray]:
        """Return the first test samples as they are this round; 0 for all."""
        if count not in self._tests:
            x, y = self.data.tests(count)
            self._tests[count] = self._now(x), y
        return self._tests[count]

    def _now(self, x: Floats | Csr) -> Floats:
        if not self._moved:
            return x  # type: ignore[return-value] # Csr where the model takes it
        if isinstance(x, Csr):
            places = self._place[x.indices].astype(np.int32)
            return Csr(x.indptr, places, x.values, x.width)  # type: ignore[return-value] # as above
        after = np.empty_like(x)
        if self._films:
            after[:, 0] = x[:, 0]
            after[:, 1] = self._place[x[:, 1].astype(np.int64)]
        else:
            after[:, self._place] = x
        return after
