"""What each device made of its forecasts: filters over a few types of devices.

A type shifts the odds that the circumstances promise: from "never delivers" over "as promised"
to "always". With a small chance per round a device turns into another one, drawn from the
population, so that old evidence fades by itself (change detection). How frequent the types are
is learnt from all devices, and is what is expected of one never seen (a pooled prior).

Several filters, which differ in how fast devices change and in the forecasts that they correct,
share their devices. Their axis comes first in what follows, F of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, FloatArray, IntArray
from fedagent_coordinator.policies.state import ArrayState, floats, grown, ints

_SHIFTS = np.exp([-2.5, -1.2, 0.0, 1.2, 2.5])
"""What the types between "never" and "always" multiply the odds by: one in ten of what was even."""
_NEVER, _ALWAYS = 0.004, 0.998
"""Chances of the outer types; not 0 and 1, so that one surprise excludes no type."""
TYPES = len(_SHIFTS) + 2
_POPULATION = np.array([0.04, 0.06, 0.14, 0.52, 0.14, 0.06, 0.04])
"""First guess of the types' shares: half of the devices do as their circumstances promise."""
_STRENGTH = 10.0
"""Devices that the first guess of the population counts for."""
_KNOWN = 5.0
"""Plays after which a device counts fully in the population."""


def chance_by_type(forecast: FloatArray) -> FloatArray:
    """Return float64[TYPES, R], the chance of success of each type under these forecasts."""
    chances = np.empty((TYPES, len(forecast)))
    chances[0], chances[-1] = _NEVER, _ALWAYS
    shifted = np.multiply.outer(_SHIFTS, forecast / (1.0 - forecast), out=chances[1:-1])
    shifted /= 1.0 + shifted
    return chances


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """R clients in a round: which are kept and where, and what is believed of those that are."""

    clients: IntArray
    known: IntArray  # int64[K], which of them are kept
    rows: IntArray  # int64[K], and where
    believed: FloatArray  # float64[K, F, TYPES]
    round: int


class DeviceFilters(ArrayState):
    """Beliefs about devices, of which only those that have played are kept."""

    place = ints("clients")  # row of each in what follows, and one more; 0: it is not kept
    belief = floats("known", "filters", TYPES, least=0)
    seen = ints("known")  # the round of the last play
    plays = floats("known", least=0)
    population = floats("filters", TYPES, start=_POPULATION * _STRENGTH, least=0)

    def __init__(self, changes: Sequence[float]) -> None:
        self.fix(filters=len(changes))
        self._stay = 1.0 - np.asarray(changes, dtype=np.float64)

    def row(self, clients: IntArray) -> tuple[IntArray, IntArray]:
        """Return the rows of those that are kept, int64[K], and which they are, int64[K]."""
        rows = grown(self.place, int(clients.max(initial=-1)) + 1)[clients]
        known = (rows > 0).nonzero()[0]
        return rows[known] - 1, known

    def usual(self) -> FloatArray:
        """Return float64[F, TYPES], shares of the types among all devices."""
        shares = self.population / self.population.sum(axis=1, keepdims=True)
        return np.asarray(shares, dtype=np.float64)

    def now(self, rows: IntArray, round_: int, types: slice = slice(None)) -> FloatArray:
        """Return float64[R, F, TYPES], what is believed of kept rows in a round."""
        gap = np.maximum(round_ - self.seen[rows], 0)
        stay: FloatArray = (self._stay ** gap[:, None])[:, :, None]
        usual = self.usual()[:, types]
        belief = self.belief[rows][:, :, types] - usual
        belief *= stay
        belief += usual
        return belief

    def find(self, clients: IntArray, round_: int) -> Found:
        """Return what is kept of these clients, int64[R], in a round from 1."""
        rows, known = self.row(clients)
        return Found(clients, known, rows, self.now(rows, round_), round_)

    def chance(
        self, found: Found, types: Sequence[FloatArray], out: FloatArray | None = None
    ) -> FloatArray:
        """Return float64[F, R], the chance of each client; in `out`, if it is given.

        `types` are the `chance_by_type` of equal groups of filters, float64[TYPES, R], or
        [TYPES, 1] if it is the same for all.
        """
        known, each = found.known, len(self._stay) // len(types)
        chances = np.empty((len(self._stay), len(found.clients))) if out is None else out
        for g, its_type in enumerate(types):
            group = slice(g * each, (g + 1) * each)
            if len(known) < len(found.clients):
                chances[group] = self.usual()[group] @ its_type
            of_known = its_type if its_type.shape[1] == 1 else its_type.take(known, axis=1)
            chances[group, known] = np.einsum("tk,kft->fk", of_known, found.believed[:, group])
        return chances

    def never(self, clients: IntArray, round_: int) -> FloatArray:
        """Return float64[F, R], the chance that each client never delivers."""
        rows, known = self.row(clients)
        chances = np.repeat(self.usual()[:, :1], len(clients), axis=1)
        chances[:, known] = self.now(rows, round_, slice(1))[:, :, 0].T
        return chances

    def learn(
        self,
        found: Found,
        types: Sequence[FloatArray],
        success: BoolArray,
        quality: FloatArray,
    ) -> FloatArray:
        """Take in outcomes of distinct clients; return what is believed now, float64[R, F, TYPES].

        `quality` is what a common cause left of every chance of success; `types` as in `chance`.
        """
        if len(found.known) < len(found.clients):
            self._know(np.delete(found.clients, found.known), found.round)
            found = self.find(found.clients, found.round)
        rows, chances = found.rows, np.empty(found.believed.shape)
        each = len(self._stay) // len(types)
        for g, its_type in enumerate(types):
            chances[:, g * each : (g + 1) * each] = its_type.T[:, None]
        failed = 1.0 - quality[:, None, None] * chances
        after = found.believed * np.where(success[:, None, None], chances, failed)
        after /= after.sum(axis=2, keepdims=True)
        self._leave(rows)
        self.belief[rows], self.seen[rows] = after, found.round
        self.plays[rows] += np.maximum(quality, success)
        self._enter(rows)
        return after

    def forget(self, clients: IntArray, round_: int) -> None:
        """Believe of these clients what is believed of a new device."""
        rows, _ = self.row(clients)
        self._leave(rows)
        self.belief[rows], self.plays[rows], self.seen[rows] = self.usual(), 0.0, round_

    def problems(self) -> Iterator[str]:
        """Refuse beliefs that are no distributions."""
        kept = np.sort(self.place[self.place > 0])
        if not np.array_equal(kept, np.arange(1, len(self.belief) + 1)):
            yield "has clients that share a belief, or have none"
        if len(self.belief) and (abs(self.belief.sum(axis=2) - 1.0) > 1e-6).any():
            yield "has beliefs that do not sum to 1"
        if not (self.population.sum(axis=1) > 0).all():
            yield "has an empty population"

    def _leave(self, rows: IntArray) -> None:
        left = self.population - self._counted(rows)
        self.population = np.maximum(left, 1e-9)

    def _enter(self, rows: IntArray) -> None:
        self.population = self.population + self._counted(rows)

    def _counted(self, rows: IntArray) -> FloatArray:
        """Return float64[F, TYPES], what these rows weigh in the population."""
        share, its = np.minimum(self.plays[rows], _KNOWN) / _KNOWN, self.belief[rows]
        counted = np.dot(share[None, :], its.reshape(len(rows), self.population.size))
        return np.asarray(counted.reshape(self.population.shape), dtype=np.float64)

    def _know(self, new: IntArray, round_: int) -> None:
        old, clients = len(self.belief), max(len(self.place), int(new.max()) + 1)
        self.grow(clients=clients, known=old + len(new))
        self.place[new] = np.arange(old, old + len(new)) + 1
        self.belief[old:], self.seen[old:] = self.usual(), round_
