"""`by-progress`: iterations where they still change something (docs/adr, docs/iterations.md).

The bound of P1 (ALGORITHMS section 7) gives device i the number that is least in
``h_i rho + c e_i rho^-alpha``: more where much arrived, less where a second buys little. Its
constant is replaced by what devices show: how far their training loss is above what it was.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from fedagent_coordinator.policies.base import Feedback, FloatArray, IntArray
from fedagent_coordinator.policies.state import ArrayState, floats, grown
from fedagent_coordinator.policies.state import number as declared
from fedagent_protocol.registry import number, whole

from .primal_dual import MAX_ITERATIONS, observed_training

_SETTLED = 3
"""Rounds until the unrest of the loss is known."""
_BURST = 2.0
"""With more than so many times the usual samples, more are new: such a loss is another one."""
_ALONE = 10.0
"""No device counts for more times the next one below it."""
_LARGEST = 1e100
"""Nor for more than this, whose squares and sums are finite."""


class ByProgressControl(ArrayState):
    """`by-progress`: a number for each device, by its arrivals, its speed and the loss's rise.

    Args:
        least, most: Range of the iterations, whole numbers.
        start: The first number.
        base: Iterations of a mean device while the loss is flat.
        unit: A loss that is above its slow mean by this share of it adds `base` once more.
        hold: Rounds in which what was added, and `start`, falls to 1/e.
        alpha: Exponent of the bound of `primal-dual`, in (0, 1]: iterations grow with arrivals by
            alpha / (1 + alpha), and fall with seconds by 1 / (1 + alpha).
        fast, slow: Rounds that the two means of the loss remember.
        noise: Standard errors of the fast mean that are taken for chance.
        load_limit_s: Seconds of training computation that a round may cost a device; 0 for none.
    """

    name = "by-progress"
    _h = floats("clients", start=math.nan, nan=True)
    _arrivals = floats("clients", start=math.nan, nan=True)
    _limit = floats("clients", start=math.inf, least=0, infinite=True)
    _usual = floats("clients", start=math.nan, nan=True)
    _samples = floats("clients", least=0)
    """The slow mean of each device's loss, and the samples that it rests on."""
    _means = floats(5)
    """Seconds, arrivals and loss of a device in a round; rounds with and without a loss."""
    _held = declared(least=0)
    """Iterations beyond `base`."""
    _moved = floats(3)
    """The fast mean of how far losses are off, its samples, the variance of a sample."""

    def __init__(
        self,
        *,
        least: int = 1,
        most: int = 20,
        start: int = 6,
        base: float = 1.1,
        unit: float = 0.015,
        hold: float = 10.0,
        alpha: float = 0.75,
        fast: float = 4.0,
        slow: float = 30.0,
        noise: float = 1.0,
        load_limit_s: float = 0.0,
    ) -> None:
        self._least = whole(self.name, "least", least, 1, MAX_ITERATIONS)
        self._most = whole(self.name, "most", most, self._least, MAX_ITERATIONS)
        start = whole(self.name, "start", start, 1, MAX_ITERATIONS)
        self._start = float(min(max(start, self._least), self._most))
        self._hold = number(self.name, "hold", hold)
        self._base, self._unit = number(self.name, "base", base), number(self.name, "unit", unit)
        self._alpha = number(self.name, "alpha", alpha, most=1.0)
        self._fast = number(self.name, "fast", fast, least=1.0)
        self._slow = number(self.name, "slow", slow, least=self._fast)
        self._noise = number(self.name, "noise", noise, least=0.0)
        self.load_limit_s = number(self.name, "load_limit_s", load_limit_s, least=0.0)

    def choose(self, clients: IntArray, rng: np.random.Generator) -> IntArray:
        """Return each device's number, rounded up or down at random, right on average."""
        rho = self.rho(clients)
        low = np.floor(rho)
        return np.asarray(low + (rng.random(len(rho)) < rho - low), dtype=np.int64)

    def rho(self, clients: IntArray) -> FloatArray:
        """Return each device's real number of iterations, float64[S]."""
        if not self._rounds:
            return np.full(len(clients), self._start)
        size = int(clients.max(initial=-1)) + 1
        mean_h, mean_arrivals = self._means[:2].tolist()
        h, came = (grown(one, size, np.nan)[clients] for one in (self._h, self._arrivals))
        h, came = (np.where(np.isfinite(h), h, mean_h), np.where(came >= 0, came, mean_arrivals))
        both = 1.0 + self._alpha
        speed = (mean_h / h) ** (1 / both)
        data = (np.maximum(came, 1.0) / mean_arrivals) ** (self._alpha / both)
        paid = grown(self._limit, size, np.inf)[clients] / h
        rho = np.minimum(self._level() * speed * data, paid)
        return np.asarray(np.clip(rho, self._least, self._most), dtype=np.float64)

    def learn(self, feedback: Feedback, *, horizon: float, steps: int = 1) -> None:  # noqa: ARG002 - the interface's arguments
        """Take in seconds, arrivals and losses of those that answered; nobody moves nothing."""
        seen = observed_training(feedback, steps=steps, default_limit_s=self.load_limit_s)
        self.grow(clients=int(seen.client.max(initial=-1)) + 1)
        self._limit[seen.client] = seen.limit_s
        answered = np.isfinite(seen.h_s)
        client = seen.client[answered]
        if not len(client):
            return
        self._h[client] = seen.h_s[answered]
        self._arrivals[client] = seen.arrivals[answered]
        self._means[3] += 1
        share = 1 / min(self._rounds, 2 * self._slow)
        others = np.isfinite(self._h)
        others[client] = False
        h, came = (bounded(one[client], one[others]) for one in (self._h, self._arrivals))
        now = np.array([h.mean(), max(came.mean(), 1.0)])
        self._means[:2] += share * (now - self._means[:2])
        if feedback.loss is not None and now[1] <= _BURST * self._means[1]:
            self._follow(client, feedback.loss[answered], feedback.num_samples[answered])
        before = self._held if self._rounds > 1 else max(0.0, self._start - self._base)
        added = min(self._base * self.rise / self._unit, self._most)
        self._held = max(added, before * math.exp(-1 / self._hold))

    def _follow(self, client: IntArray, loss: FloatArray, samples: IntArray) -> None:
        known = np.isfinite(loss) & (loss >= 0) & (samples > 0)
        client = client[known]
        if not len(client):
            return
        others = np.isfinite(self._usual)
        others[client] = False
        loss = bounded(loss[known], self._usual[others])
        weight = bounded(samples[known].astype(np.float64), self._samples[others])
        usual = self._usual[client]
        usual = np.where(np.isfinite(usual), usual, loss)
        # One device that claims any loss moves the mean by no more than its share.
        off = np.clip(loss - usual, -np.abs(usual), np.abs(usual))
        total = float(weight.sum())
        self._move(float(off @ weight) / total, total)
        self._samples[client] = (1 - 1 / self._slow) * self._samples[client] + weight
        self._usual[client] = usual + off * weight / self._samples[client]
        self._means[2] = float(np.abs(self._usual[client]) @ weight) / total

    def _move(self, off: float, total: float) -> None:
        fast, samples, variance = self._moved.tolist()
        self._means[4] += 1
        if self._means[4] > 1:
            seen = total * (off - fast) ** 2
            seen = min(seen, 9 * variance) if self._means[4] > _SETTLED + 2 else seen
            variance += (seen - variance) / min(self._means[4], 30)
        samples = (1 - 1 / self._fast) * samples + total
        self._moved = np.array([fast + (off - fast) * total / samples, samples, variance])

    @property
    def _rounds(self) -> float:
        return float(self._means[3])

    def _level(self) -> float:
        """Return the iterations of a device of mean speed and arrivals."""
        if not self._rounds:
            return self._start
        return min(max(self._base + self._held, self._least), self._most)

    @property
    def rise(self) -> float:
        """How far losses are above what they used to be, beyond chance, as a share of it.

        What falls is no reason: iterations on few samples make the training's loss fall by
        themselves.
        """
        fast, samples, variance = self._moved.tolist()
        if not samples or not self._means[2]:
            return 0.0
        chance = self._noise * math.sqrt(variance / samples) if self._means[4] > _SETTLED else 0.0
        return float(max(0.0, fast - chance) / self._means[2])

    def notes(self) -> Mapping[str, float]:
        """Return the mean device's number, and what it goes by."""
        return {
            "rho": self._level(),
            "rise": self.rise,
            "loss": float(self._means[2]),
            "h_s": float(self._means[0]),
        }

    def problems(self) -> Iterator[str]:
        """Refuse seconds that are not above 0, and counts below."""
        if (self._h <= 0).any() or (self._arrivals < 0).any():
            yield "has seconds or arrivals out of range"
        if (np.isfinite(self._h) != np.isfinite(self._arrivals)).any():
            yield "has seconds without arrivals"
        if (self._means < 0).any() or (self._moved[1:] < 0).any():
            yield "has means out of range"
        if self._means[3] and not (self._means[:2] > 0).all():
            yield "has rounds without seconds"


def bounded(values: FloatArray, others: FloatArray) -> FloatArray:
    """Return what devices say, from 0, the largest at most ten times the next of all.

    It goes into means for all, which no device decides alone.
    """
    size = np.concatenate([values, others])
    near = float(np.partition(size, -2)[-2]) if len(size) > 1 else _LARGEST
    return np.minimum(values, min(_ALONE * (near or 1.0), _LARGEST))
