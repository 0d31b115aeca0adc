"""The inner loops of strSAGA one number at a time, compiled by numba where it is there.

Everything that a compiled loop calls stands in this file, because numba looks only at
one file to tell whether what it has kept on disk is still true. `scalar` and `plan` serve
the numpy path too. Arrays are those of `strsaga_dense`, `strsaga_sparse` and
`strsaga_factors`; `k` counts iterations, `o` outputs of the model.
"""

# ruff: noqa: PLR0917 - compiled loops take no keywords

import functools
import math
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]
Columns = npt.NDArray[np.int32]

How = tuple[int, float, float, int]
"""Loss, step size, what a step leaves of the weights, size of the set."""
Plan = tuple[Counts, Counts, Counts]
"""Source, slot and draw of each iteration, see `plan`."""
DenseBuffer = tuple[Singles, Doubles]
"""Rows and labels that wait."""
DenseSet = tuple[Singles, Doubles, Doubles]
"""Rows, labels and scalars of the gradients [slots, outputs]."""
SparseRows = tuple[Columns, Singles]
"""Columns and values of all samples, one after the other."""
SparseBuffer = tuple[Counts, Columns, Doubles]
"""Where the rows that wait begin, their lengths and labels."""
SparseSet = tuple[Counts, Columns, Doubles, Doubles]
"""The same of the set, and scalars of the gradients [slots, outputs]."""

SQUARED, LOGISTIC, SQUARED_HINGE, HINGE, SOFTMAX = range(5)
"""Codes of the losses."""

_LARGE = 1e200


@dataclass(frozen=True, slots=True)
class SagaLoops:
    """Compiled loops, with the signatures of the functions of these names."""

    plan: Callable[..., None]
    dense_one: Callable[..., float]
    dense_many: Callable[..., float]
    sparse: Callable[..., float]
    factors: Callable[..., float]


@functools.cache
def compiled() -> SagaLoops | None:
    """Return the loops as machine code, None without numba.

    The first call of each takes seconds, later processes read what it has kept.
    """
    if find_spec("numba") is None:
        return None
    import numba  # noqa: PLC0415 - optional package, half a second

    for inner in (scalar, residual, store_dense, store_sparse, lose_rating):
        numba.extending.register_jitable(inner)

    def ready(loop: Callable[..., object]) -> Callable[..., object]:
        # Order of sums is free, but numbers that are not finite stay so.
        free = {"reassoc", "contract", "arcp", "nsz"}
        try:
            return numba.njit(loop, nogil=True, cache=True, fastmath=free)  # type: ignore[no-any-return] # numba is untyped
        except RuntimeError:  # nowhere to keep it
            return numba.njit(loop, nogil=True, fastmath=free)  # type: ignore[no-any-return] # numba is untyped

    loops = (plan, dense_one, dense_many, sparse, factors)
    return SagaLoops(*map(ready, loops))  # type: ignore[arg-type] # one signature each


def scalar(loss: int, z: float, target: float) -> tuple[float, float, float]:
    """Return d loss / d z, and two numbers: the loss is the first plus the second's logarithm.

    So a sum of losses takes one logarithm of a product. Hinges take targets -1 and +1.
    """
    if loss == LOGISTIC:
        tail = math.exp(-abs(z))
        top = tail if z < 0.0 else 1.0
        return top / (1.0 + tail) - target, max(z, 0.0) - target * z, 1.0 + tail
    if loss == SQUARED:
        error = z - target
        return error, 0.5 * error * error, 1.0
    slack = 1.0 - target * z
    if slack <= 0.0:
        return 0.0, 0.0, 1.0
    if loss == HINGE:
        return -target, slack, 1.0
    return -2.0 * target * slack, slack * slack, 1.0


def residual(loss: int, z: Doubles, y: float) -> tuple[float, float]:
    """Turn scores into d loss / d scores; return the loss in two numbers, as `scalar` does.

    Of more than one hinge each class is held against all others.
    """
    outputs, total = len(z), 0.0
    if outputs == 1:
        z[0], total, factor = scalar(loss, z[0], y)
        return total, factor
    if loss == SOFTMAX:
        top = z[0]
        for o in range(1, outputs):
            top = max(top, z[o])
        true = z[int(y)] - top
        for o in range(outputs):
            z[o] = math.exp(z[o] - top)
            total += z[o]
        for o in range(outputs):
            z[o] /= total
        z[int(y)] -= 1.0
        return -true, total
    for o in range(outputs):
        z[o], each, _ = scalar(loss, z[o], 1.0 if int(y) == o else -1.0)
        total += each
    return total, 1.0


def plan(
    moving: Sequence[float],
    keeping: Sequence[float],
    drawing: Sequence[float],
    book: MutableSequence[int],
    waiting: MutableSequence[int],
    source: MutableSequence[int],
    slot: MutableSequence[int],
    draw: MutableSequence[int],
) -> None:
    """Decide for each iteration what it moves and what it steps on (ALGORITHMS section 7).

    Args:
        moving: Uniform numbers that choose from the buffer; a number u below 1 times
            a count is below the count, whatever is rounded.
        keeping: Uniform numbers that choose what a full set gives up.
        drawing: Uniform numbers that choose from the set.
        book: Iterations so far, waiting samples, size of the set, samples that ever
            came to the set, samples that the set refused, cap; all but the last are moved on.
        waiting: Places in the buffer of the samples that wait there.
        source: Gets the place in the buffer of the sample that moves, -1 for none.
        slot: Gets the slot that it moves to, -1 for none.
        draw: Gets the slot that is stepped on, -1 for none.
    """
    z, left, n, seen, refused, cap = book[0], book[1], book[2], book[3], book[4], book[5]
    for k in range(len(draw)):
        z += 1
        source[k] = slot[k] = draw[k] = -1
        if z % 2 == 0 and left > 0:
            place = int(moving[k] * left)
            left -= 1
            chosen = waiting[place]
            waiting[place] = waiting[left]
            seen += 1
            if n < cap:
                source[k], slot[k] = chosen, n
                n += 1
            else:
                kept = int(keeping[k] * seen)
                if kept < cap:
                    source[k], slot[k] = chosen, kept
                else:
                    refused += 1
        if n > 0:
            draw[k] = int(drawing[k] * n)
    book[0], book[1], book[2], book[3], book[4] = z, left, n, seen, refused


def store_dense(
    occupied: bool, source: int, slot: int, buffer: DenseBuffer, kept: DenseSet, g: Doubles
) -> None:
    """Put a sample into a slot; what an occupied one had leaves the sums."""
    x, y, delta = kept
    width = x.shape[1]
    if occupied:
        for o in range(len(g)):
            for j in range(width):
                g[o, j] -= delta[slot, o] * x[slot, j]
            g[o, width] -= delta[slot, o]
    x[slot, :] = buffer[0][source]
    y[slot] = buffer[1][source]
    delta[slot, :] = 0.0


def dense_one(
    how: How, moves: Plan, buffer: DenseBuffer, kept: DenseSet, w: Doubles, g: Doubles
) -> float:
    """Do the planned iterations on dense rows, one output; return the sum of the losses."""
    loss, rate, decay, n = how
    source, slot, draw = moves
    x, y, delta = kept
    width, weights, sums, own = x.shape[1], w[0], g[0], delta[:, 0]
    total, product = 0.0, 1.0
    for k in range(len(draw)):
        if slot[k] >= 0:
            store_dense(slot[k] < n, source[k], slot[k], buffer, kept, g)
            n = max(n, slot[k] + 1)
        i = draw[k]
        if i < 0:
            continue
        reach = 0.0
        for j in range(width):
            reach += weights[j] * x[i, j]
        sigma, each, factor = scalar(loss, reach + weights[width], y[i])
        total += each
        product *= factor
        if product > _LARGE:
            total += math.log(product)
            product = 1.0
        change = sigma - own[i]
        own[i] = sigma
        share, down = rate / n, rate * change
        for j in range(width):
            weights[j] = decay * weights[j] - share * sums[j] - down * x[i, j]
            sums[j] += change * x[i, j]
        weights[width] -= share * sums[width] + down
        sums[width] += change
    return total + math.log(product)


def dense_many(
    how: How, moves: Plan, buffer: DenseBuffer, kept: DenseSet, w: Doubles, g: Doubles
) -> float:
    """Do the planned iterations on dense rows; return the sum of the losses."""
    loss, rate, decay, n = how
    source, slot, draw = moves
    x, y, delta = kept
    width, outputs = x.shape[1], len(w)
    z = np.empty(outputs)
    total, product = 0.0, 1.0
    for k in range(len(draw)):
        if slot[k] >= 0:
            store_dense(slot[k] < n, source[k], slot[k], buffer, kept, g)
            n = max(n, slot[k] + 1)
        i = draw[k]
        if i < 0:
            continue
        row = x[i]
        for o in range(outputs):
            reach, weights = 0.0, w[o]
            for j in range(width):
                reach += weights[j] * row[j]
            z[o] = reach + weights[width]
        each, factor = residual(loss, z, y[i])
        total += each
        product *= factor
        if product > _LARGE:
            total += math.log(product)
            product = 1.0
        share = rate / n
        for o in range(outputs):
            change = z[o] - delta[i, o]
            delta[i, o] = z[o]
            down, weights, sums = rate * change, w[o], g[o]
            for j in range(width):
                weights[j] = decay * weights[j] - share * sums[j] - down * row[j]
                sums[j] += change * row[j]
            weights[width] -= share * sums[width] + down
            sums[width] += change
    return total + math.log(product)


def store_sparse(
    occupied: bool,
    source: int,
    slot: int,
    due: float,
    rows: SparseRows,
    buffer: SparseBuffer,
    kept: SparseSet,
    table: Doubles,
    bias: Doubles,
) -> None:
    """As `store_dense`."""
    columns, values = rows
    start, length, y, delta = kept
    outputs = delta.shape[1]
    if occupied:
        for o in range(outputs):
            for p in range(start[slot], start[slot] + length[slot]):
                gone = delta[slot, o] * values[p]
                table[columns[p], o] -= due * gone
                table[columns[p], outputs + o] -= gone
            bias[1, o] -= delta[slot, o]
    start[slot], length[slot], y[slot] = buffer[0][source], buffer[1][source], buffer[2][source]
    delta[slot, :] = 0.0


def sparse(
    how: How,
    moves: Plan,
    rows: SparseRows,
    buffer: SparseBuffer,
    kept: SparseSet,
    table: Doubles,
    bias: Doubles,
    clock: Doubles,
) -> float:
    """Do the planned iterations on sparse rows; return the sum of the losses."""
    loss, rate, decay, n = how
    source, slot, draw = moves
    start, length, y, delta = kept
    outputs = delta.shape[1]
    z = np.empty(outputs)
    due, scale = clock[0], clock[1]
    total, product = 0.0, 1.0
    for k in range(len(draw)):
        if slot[k] >= 0:
            store_sparse(slot[k] < n, source[k], slot[k], due, rows, buffer, kept, table, bias)
            n = max(n, slot[k] + 1)
        i = draw[k]
        if i < 0:
            continue
        where, value = rows[0][start[i] : start[i] + length[i]], rows[1][start[i] :]
        for o in range(outputs):
            reach, back = 0.0, 0.0
            for p in range(len(where)):
                reach += table[where[p], o] * value[p]
                back += table[where[p], outputs + o] * value[p]
            z[o] = scale * (reach - due * back) + bias[0, o]
        each, factor = residual(loss, z, y[i])
        total += each
        product *= factor
        if product > _LARGE:
            total += math.log(product)
            product = 1.0
        scale *= decay
        due += rate / (n * scale)
        for o in range(outputs):
            change = z[o] - delta[i, o]
            delta[i, o] = z[o]
            down = change * (due - rate / scale)
            for p in range(len(where)):
                table[where[p], o] += down * value[p]
                table[where[p], outputs + o] += change * value[p]
            bias[0, o] -= rate * (change + bias[1, o] / n)
            bias[1, o] += change
    clock[0], clock[1] = due, scale
    return total + math.log(product)


def lose_rating(lost: Doubles, due: float, u: Doubles, v: Doubles) -> None:
    """Take the gradient of an evicted rating out of the sums of its rows."""
    size = len(lost) // 2
    for f in range(size):
        u[f] -= due * lost[f]
        v[f] -= due * lost[size + f]
        u[size + f] -= lost[f]
        v[size + f] -= lost[size + f]


def factors(
    rate: float,
    l2: float,
    n: int,
    moves: Plan,
    buffer: tuple[Columns, Doubles],
    kept: Doubles,
    users: Doubles,
    items: Doubles,
    mean: Doubles,
    clock: Doubles,
) -> float:
    """Do the planned iterations on ratings; return the sum of the losses."""
    source, slot, draw = moves
    size = users.shape[1] // 2
    rank = size - 1
    due, total, ahead = clock[0], 0.0, 0.0
    for k in range(len(draw)):
        if k + 1 < len(draw):
            # Fetch the next sample while this one is worked on: the set outgrows the caches.
            coming = draw[k + 1]
            for f in range(0, 2 * size, 8):
                ahead += kept[coming, f]
        s = slot[k]
        if s >= 0:
            if s == n:
                n += 1
            else:
                old = kept[s]
                lose_rating(old[3:], due, users[int(old[0])], items[int(old[1])])
                mean[1] -= old[3 + rank]
            kept[s, :2] = buffer[0][source[k], :]
            kept[s, 2] = buffer[1][source[k]]
            kept[s, 3:] = 0.0
        i = draw[k]
        if i < 0:
            continue
        u, v, own = users[int(kept[i, 0])], items[int(kept[i, 1])], kept[i, 3:]
        error = mean[0] + u[rank] + v[rank] - due * (u[size + rank] + v[size + rank]) - kept[i, 2]
        for f in range(rank):
            error += (u[f] - due * u[size + f]) * (v[f] - due * v[size + f])
        total += 0.5 * error * error
        before = due
        due += rate / n
        down = due - rate
        for f in range(rank):
            p, q = u[f] - before * u[size + f], v[f] - before * v[size + f]
            change_p, change_q = error * q - own[f], error * p - own[size + f]
            own[f], own[size + f] = error * q, error * p
            u[f] += down * change_p - rate * l2 * p
            v[f] += down * change_q - rate * l2 * q
            u[size + f] += change_p
            v[size + f] += change_q
        change = error - own[rank]
        own[rank] = own[size + rank] = error
        u[rank] += down * change
        v[rank] += down * change
        u[size + rank] += change
        v[size + rank] += change
        mean[0] -= rate * (change + mean[1] / n)
        mean[1] += change
    clock[0], clock[1] = due, ahead
    return total
