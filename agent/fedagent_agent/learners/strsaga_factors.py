"""strSAGA's arithmetic on ratings: a step touches the rows of one user and one item.

The mean of the gradients is kept in mind as `strsaga_sparse` does it. A stored sample keeps
its whole gradient, which is no multiple of anything.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels
from fedagent_task.models.base import Csr
from fedagent_task.recipe.spec import ModelSpec

from .strsaga_book import Moves
from .strsaga_dense import grown
from .strsaga_loops import SagaLoops
from .strsaga_sparse import FLUSH_AFTER

Doubles = npt.NDArray[np.float64]


class FactorTable:
    """The set, its gradients, the factors and the sums of the gradients.

    A row of the set is user, item, rating and gradient, that of the user's factors and
    bias and that of the item's. A row of a table is a user or an item: factors and bias
    with what is due, then their sums.
    """

    def __init__(self, spec: ModelSpec, *, rate: float, loops: SagaLoops | None) -> None:
        self._rank, self._l2 = spec.rank, spec.l2
        self._rate, self._loops = rate, loops
        # One table, so that numpy reads and writes both kinds at once.
        self._rows = np.zeros((spec.users + spec.items, 2 * spec.rank + 2))
        self._users, self._items = self._rows[: spec.users], self._rows[spec.users :]
        self._mean = np.zeros(2)
        # The second cell only takes what the loop must be seen to use.
        self._clock = np.zeros(2)
        self._iterations = 0
        self._kept = np.empty((0, 2 * spec.rank + 5))
        self._buffer_pair, self._buffer_y = np.empty((0, 2), np.int32), np.empty(0)

    block = FLUSH_AFTER
    """Most iterations of one `advance`."""

    @property
    def nbytes(self) -> int:
        """Memory of the stored samples with all that belongs to them."""
        return self._kept.nbytes

    def begin(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Start from these weights with an empty set."""
        tables = (self._users, "users", "user_bias"), (self._items, "items", "item_bias")
        for table, rows, bias in tables:
            table[:, : self._rank], table[:, self._rank] = weights[rows], weights[bias]
            table[:, self._rank + 1 :] = 0.0
        self._mean[:] = weights["bias"][0], 0.0
        self._clock[0], self._iterations = 0.0, 0

    def offer(self, x: Inputs, y: Labels, room: int) -> None:
        """Take new samples into the buffer; `room` is what the set may need from now on."""
        pairs = x.dense() if isinstance(x, Csr) else x
        self._buffer_pair = np.array(pairs, np.int32, order="C")
        self._buffer_y = np.array(y, np.float64)
        if room > len(self._kept):
            self._kept = grown(self._kept, room)

    def advance(self, moves: Moves) -> float:
        """Do some iterations; return the sum of the losses before each step."""
        if self._loops:
            total = self._loops.factors(
                self._rate, self._l2, moves.stored, (moves.source, moves.slot, moves.draw),
                (self._buffer_pair, self._buffer_y), self._kept,
                self._users, self._items, self._mean, self._clock,
            )  # fmt: skip
        else:
            total = self._walk(moves)
        self._iterations += len(moves.draw)
        if self._iterations >= FLUSH_AFTER:
            self._flush()
        return total

    def weights(self) -> dict[str, Doubles]:
        """Return the weights as they are now."""
        self._flush()
        rank = self._rank
        return {
            "bias": self._mean[:1],
            "item_bias": self._items[:, rank],
            "items": self._items[:, :rank],
            "user_bias": self._users[:, rank],
            "users": self._users[:, :rank],
        }

    def _flush(self) -> None:
        size = self._rank + 1
        self._rows[:, :size] -= self._clock[0] * self._rows[:, size:]
        self._clock[0], self._iterations = 0.0, 0

    def _walk(self, moves: Moves) -> float:
        rank, rate, n, total = self._rank, self._rate, moves.stored, 0.0
        table, kept = self._rows.reshape(-1, 2, rank + 1), self._kept
        beyond = np.array((0, len(self._users)))
        pairs = kept[:, :2].astype(np.intp) + beyond
        own = kept[:, 3:].reshape(-1, 2, rank + 1)
        (mean, mean_sum), due = self._mean.tolist(), float(self._clock[0])
        for source, slot, i in zip(moves.source, moves.slot, moves.draw, strict=True):
            if slot >= 0:
                if slot < n:
                    lost = own[slot]
                    table[pairs[slot]] -= np.stack((due * lost, lost), axis=1)
                    mean_sum -= float(lost[0, rank])
                kept[slot, :2], kept[slot, 2] = self._buffer_pair[source], self._buffer_y[source]
                pairs[slot] = self._buffer_pair[source] + beyond
                own[slot] = 0.0
                n = max(n, slot + 1)
            if i < 0:
                continue
            both = table[pairs[i]]
            now = both[:, 0] - due * both[:, 1]
            # The slope of factors and bias is the error times the other's factors and one.
            slope = now[::-1].copy()
            slope[:, rank] = 1.0
            error = mean + float(now[0].dot(slope[0])) + float(now[1, rank]) - float(kept[i, 2])
            total += 0.5 * error * error
            slope *= error
            change = slope - own[i]
            own[i] = slope
            moved = float(change[0, rank])
            due += rate / n
            both[:, 1] += change
            both[:, 0] += (due - rate) * change
            both[:, 0, :rank] -= rate * self._l2 * now[:, :rank]
            table[pairs[i]] = both
            mean -= rate * (moved + mean_sum / n)
            mean_sum += moved
        self._clock[0], self._mean[:] = due, (mean, mean_sum)
        return total
