"""Which of strSAGA's iterations on ratings numpy can do at once.

Iterations that follow each other and share neither a user nor an item do not change what
the others read: only the mean and the sum of its gradients go from one to the next, two
numbers. So a plan is cut into blocks, each as long as its rows are all different.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .strsaga_book import Moves

Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Iterations that step on a sample [k], cut into blocks; a plan's first ones may not.

    Attributes:
        bounds: First iteration of each block and the first beyond it.
        draw: Slot that an iteration steps on [k].
        rows: Rows of its user and its item, items behind the users [k, 2].
        y: Its rating [k].
        sizes: Size of the set [k].
        stores: Iterations that move a sample into the set [s].
        slots: Slots that they move it to [s].
        fresh: User, item and rating of that sample [s, 3].
        evictions: Iterations whose slot was taken [e].
        lost: Those slots [e].
        lost_rows: Rows of the user and the item that they held [e, 2].
    """

    bounds: list[tuple[int, int]]
    draw: Places
    rows: Places
    y: Doubles
    sizes: Places
    stores: Places
    slots: Places
    fresh: Doubles
    evictions: Places
    lost: Places
    lost_rows: Places


def blocks(
    moves: Moves, users: int, kept: Doubles, buffer_pair: npt.NDArray[np.int32], buffer_y: Doubles
) -> Blocks:
    """Cut a plan.

    Args:
        moves: The plan.
        users: Number of users: the row of the first item.
        kept: The set before the plan, whose first columns are user, item and rating.
        buffer_pair: User and item of each waiting sample [n, 2].
        buffer_y: Their ratings [n].
    """
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
    """What a slot holds at any time of a plan."""

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
    """Return for each time when one of its rows was used before, -1 for never.

    Args:
        times: When a pair of rows is used [n]; some times twice, all from 0 on.
        rows: The pairs [n, 2].
    """
    count = times.max(initial=-1) + 1
    bits = int(count).bit_length()
    last = np.full(count, -1)
    keys = np.sort(((rows << bits) | times[:, None]).ravel())
    row, at = keys >> bits, keys & ((1 << bits) - 1)
    again = (row[1:] == row[:-1]) & (at[1:] != at[:-1])
    np.maximum.at(last, at[1:][again], at[:-1][again])
    return last


def _bounds(after: list[int]) -> list[tuple[int, int]]:
    """Return the longest blocks in which no iteration waits for another.

    Args:
        after: For each iteration the last one that has to be over before its block
            begins, -1 for none.
    """
    edges, start = [0], 0
    for k, last in enumerate(after):
        if last >= start:
            start = k
            edges.append(k)
    return list(pairwise([*edges, len(after)])) if after else []
