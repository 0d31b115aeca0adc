"""strSAGA's arithmetic on ratings: a step touches the rows of one user and one item.

The mean of the gradients is kept in mind as `strsaga_sparse` does it. A stored sample keeps
its whole gradient, which is no multiple of anything. In numpy, iterations that follow each
other and share neither a user nor an item are done at once: only the mean and the sum of its
gradients go from one to the next. So a plan is cut into blocks whose rows are all different.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

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
Places = npt.NDArray[np.intp]
_NOTHING = [(0, 0.0)]
"""No eviction in a block, which begins with 0 all the same."""
_BLOCK = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Iterations that step on a sample [k], cut into blocks; a plan's first ones may not.

    Attributes:
        stores, slots, fresh: Iterations that move a sample into the set, where to, and its
            user, item and rating [s], [s], [s, 3].
        evictions, lost, lost_rows: Iterations whose slot was taken, those slots, and the rows of
            the user and the item that they held [e], [e], [e, 2].
    """

    bounds: list[tuple[int, int]]  # first iteration of each block and the first beyond it
    draw: Places  # slot that an iteration steps on [k]
    rows: Places  # rows of its user and its item, items behind the users [k, 2]
    y: Doubles  # its rating [k]
    sizes: Places  # size of the set [k]
    stores: Places
    slots: Places
    fresh: Doubles
    evictions: Places
    lost: Places
    lost_rows: Places


def blocks(
    moves: Moves, users: int, kept: Doubles, buffer_pair: npt.NDArray[np.int32], buffer_y: Doubles
) -> Blocks:
    """Cut a plan; the first columns of `kept`, the set before it, are user, item and rating."""
    planned = np.array((moves.source, moves.slot, moves.draw), np.intp)
    source, slot, draw = planned[:, int(np.count_nonzero(planned[2] < 0)) :]
    stores = np.flatnonzero(slot >= 0)
    slots, places = slot[stores], source[stores]
    fresh = np.column_stack((buffer_pair[places], buffer_y[places]))
    sizes = np.maximum(np.maximum.accumulate(slot + 1), moves.stored)
    taken = slots < np.append(moves.stored, sizes)[stores]
    evictions, lost = stores[taken], slots[taken]
    history = _History(len(draw), kept, stores, slots, fresh)
    times = np.arange(len(draw))
    _, drawn = history.held(draw, times + 1)
    born, gone = history.held(lost, evictions)
    offset = np.array((0, users))
    rows, lost_rows = (s[:, :2].astype(np.intp) + offset for s in (drawn, gone))
    # A slot that is taken twice in a block would give up its first sample twice.
    after = np.full(len(draw), -1)
    after[evictions] = born
    before = _last_use(np.concatenate((evictions, times)), np.concatenate((lost_rows, rows)))
    np.maximum(after, before, out=after)
    return Blocks(
        _bounds(after.tolist()), draw, rows, drawn[:, 2].copy(), sizes,
        stores, slots, fresh, evictions, lost, lost_rows,
    )  # fmt: skip


class _History:
    def __init__(
        self, count: int, kept: Doubles, stores: Places, slots: Places, fresh: Doubles
    ) -> None:
        self._bits, self._kept = int(count).bit_length(), kept
        keys = (slots << self._bits) | stores
        order = np.argsort(keys)
        # In front of all stands a key below any that is looked up.
        self._keys = np.append(-1, keys[order])
        self._fresh = np.concatenate((np.zeros((1, 3)), fresh[order]))

    def held(self, slots: Places, before: Places) -> tuple[Places, Doubles]:
        """Return since when, -1 for always, and which sample a slot has before a time."""
        samples, since = self._kept[slots, :3], np.full(len(slots), -1)
        if len(self._keys) > 1:
            place = np.searchsorted(self._keys, (slots << self._bits) | before) - 1
            key = self._keys[place]
            here = (key >> self._bits) == slots
            samples[here] = self._fresh[place[here]]
            since[here] = key[here] & ((1 << self._bits) - 1)
        return since, samples


def _last_use(times: Places, rows: Places) -> Places:
    count = times.max(initial=-1) + 1
    bits = int(count).bit_length()
    last = np.full(count, -1)
    keys = np.sort(((rows << bits) | times[:, None]).ravel())
    row, at = keys >> bits, keys & ((1 << bits) - 1)
    again = (row[1:] == row[:-1]) & (at[1:] != at[:-1])
    np.maximum.at(last, at[1:][again], at[:-1][again])
    return last


def _bounds(after: list[int]) -> list[tuple[int, int]]:
    """Return the longest blocks in which no iteration waits for another; -1 waits for none."""
    edges, start = [0], 0
    for k, last in enumerate(after):
        if last >= start:
            start = k
            edges.append(k)
    return list(pairwise([*edges, len(after)])) if after else []


class FactorTable:
    """The set, its gradients, the factors and the sums of the gradients.

    A row of the set is user, item, rating and gradient, that of the user's factors and
    bias and that of the item's. A row of a table is a user or an item: factors and bias
    with what is due, then their sums.
    """

    def __init__(self, spec: ModelSpec, *, rate: float, loops: SagaLoops | None) -> None:
        self._rank, self._l2 = spec.rank, spec.l2
        self._rate, self._loops = rate, loops
        # One table, so that a block of numpy's reads and writes both kinds at once.
        self._rows = np.zeros((spec.users + spec.items, 2 * spec.rank + 2))
        self._users, self._items = self._rows[: spec.users], self._rows[spec.users :]
        self._halves = self._rows.reshape(-1, spec.rank + 1)
        self._half_type, self._kept_type = _record(spec.rank + 1), _record(2 * spec.rank + 5)
        self._half_records = self._halves.view(self._half_type)[:, 0]
        self._mean = np.zeros(2)
        # The second cell only takes what the loop must be seen to use.
        self._clock = np.zeros(2)
        self._iterations = 0
        self._kept = np.empty((0, 2 * spec.rank + 5))
        self._kept_records = self._kept.view(self._kept_type)[:, 0]
        self._shrink = rate * spec.l2
        # What a prediction takes of the products of both rows: those of the factors once.
        self._once = np.repeat((1.0, 0.0, 1.0), (spec.rank + 1, spec.rank, 1))
        self._buffer_pair, self._buffer_y = np.empty((0, 2), np.int32), np.empty(0)

    @property
    def block(self) -> int:
        """Most iterations of one `advance`; without numba each takes memory for a while."""
        return FLUSH_AFTER if self._loops else _BLOCK

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
            self._kept_records = self._kept.view(self._kept_type)[:, 0]

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
        plan = blocks(moves, len(self._users), self._kept, self._buffer_pair, self._buffer_y)
        shares = self._rate / plan.sizes
        due = np.cumsum(np.append(self._clock[0], shares))
        # Written out for all numbers of a step: numpy multiplies equal shapes much faster.
        before, down = (
            np.repeat(d, 2 * self._rank + 2).reshape(-1, 2, self._rank + 1)
            for d in (due[:-1], due[1:] - self._rate)
        )
        halves = _halves(plan.rows)
        fresh = np.zeros((len(plan.stores), self._kept.shape[1]))
        fresh[:, :3] = plan.fresh
        stores, evictions = plan.stores.tolist(), plan.evictions.tolist()
        total, stored, evicted, steps = 0.0, 0, 0, shares.tolist()
        for start, end in plan.bounds:
            part, gone = slice(start, end), _NOTHING
            if evicted < len(evictions) and evictions[evicted] < end:
                those = slice(evicted, bisect_left(evictions, end, evicted))
                evicted, at = those.stop, plan.evictions[those]
                lost = self._evict(plan.lost[those], _halves(plan.lost_rows[those]), before[at])
                gone = [*_NOTHING, *zip((at - start).tolist(), lost, strict=True)]
            if stored < len(stores) and stores[stored] < end:
                those = slice(stored, bisect_left(stores, end, stored))
                stored = those.stop
                self._kept[plan.slots[those]] = fresh[those]
            total += self._leap(
                plan.draw[part], halves[:, part].copy(), plan.y[part], before[part], down[part],
                steps[part], gone,
            )  # fmt: skip
        self._clock[0] = due[-1]
        return total

    def _evict(self, slots: Places, halves: Places, due: Doubles) -> list[float]:
        lost = self._kept[slots, 3:].reshape(due.shape)
        self._halves[halves] -= due * lost, lost
        errors: list[float] = lost[:, 0, -1].tolist()
        return errors

    def _leap(
        self,
        slots: Places,
        halves: Places,
        y: Doubles,
        due: Doubles,
        down: Doubles,
        shares: list[float],
        gone: list[tuple[int, float]],
    ) -> float:
        """Do the iterations of a block [b] at once; return the sum of the losses.

        `halves` [2, b, 2] are where factors and sums of users and items are; `due` and `down` are
        what the sums are due before each and after it, less the rate, for each number
        [b, 2, rank + 1]; `gone` are errors that leave the sum of the mean, and when.
        """
        rank, size = self._rank, self._rank + 1
        table, kept = self._halves.take(halves, axis=0), self._kept.take(slots, axis=0)
        level, sums = table
        own = kept[:, 3:].reshape(due.shape)
        old = own[:, 0, rank]
        now = level - due * sums
        # The slope of factors and bias is the error times the other's factors and one.
        slope = now[:, ::-1].copy()
        slope[..., rank] = 1.0
        misses = (now * slope).reshape(-1, 2 * size).dot(self._once)
        misses -= y
        misses -= old
        errors = self._chain(misses.tolist(), shares, gone)
        errors += old
        slope *= errors[:, None, None]
        change = slope - own
        own[...] = slope
        sums += change
        change *= down
        level += change
        if self._shrink:
            now *= self._shrink
            # Biases are not held back.
            now[..., rank] = 0.0
            level -= now
        self._half_records[halves] = table.view(self._half_type)[..., 0]
        self._kept_records[slots] = kept.view(self._kept_type)[:, 0]
        return 0.5 * float(errors.dot(errors))

    def _chain(
        self, misses: list[float], shares: list[float], gone: list[tuple[int, float]]
    ) -> Doubles:
        """Return by how much errors changed; move the mean, which all of them share.

        ``misses`` are these changes but for the mean.
        """
        rate, changes = self._rate, list[float]()
        mean, mean_sum = self._mean.tolist()
        for k, (start, lost) in enumerate(gone, 1):
            mean_sum -= lost
            end = gone[k][0] if k < len(gone) else None
            for miss, share in zip(misses[start:end], shares[start:end], strict=True):
                change = miss + mean
                changes.append(change)
                mean -= rate * change + share * mean_sum
                mean_sum += change
        self._mean[:] = mean, mean_sum
        return np.array(changes)


def _record(numbers: int) -> np.dtype[np.void]:
    """Return a type that holds so many numbers as one thing: numpy scatters it at once."""
    return np.dtype((np.void, 8 * numbers))


def _halves(rows: Places) -> Places:
    return np.stack((2 * rows, 2 * rows + 1))
