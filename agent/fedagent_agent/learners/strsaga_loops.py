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

SQUARED, LOGISTIC, SQUARED_HINGE, HINGE, SOFTMAX = range(5)
"""Codes of the losses."""


@dataclass(frozen=True, slots=True)
class Loops:
    """Compiled loops, with the signatures of the functions of these names."""

    plan: Callable[..., None]
    dense: Callable[..., float]
    sparse: Callable[..., float]
    factors: Callable[..., float]


@functools.cache
def compiled() -> Loops | None:
    """Return the loops as machine code, None without numba.

    The first call of each takes seconds, later processes read what it has kept.
    """
    if find_spec("numba") is None:
        return None
    from numba import njit  # noqa: PLC0415 - optional package, half a second
    from numba.extending import register_jitable  # noqa: PLC0415

    for inner in (scalar, residual, lose_rating):
        register_jitable(inner)

    def ready(loop: Callable[..., object]) -> Callable[..., object]:
        # Order of sums is free, but numbers that are not finite stay so.
        free = {"reassoc", "contract", "arcp", "nsz"}
        try:
            return njit(loop, nogil=True, cache=True, fastmath=free)  # type: ignore[no-any-return] # numba is untyped
        except RuntimeError:  # nowhere to keep it
            return njit(loop, nogil=True, fastmath=free)  # type: ignore[no-any-return] # numba is untyped

    return Loops(*map(ready, (plan, dense, sparse, factors)))  # type: ignore[arg-type] # one signature each


def scalar(loss: int, z: float, target: float) -> tuple[float, float]:
    """Return d loss / d z and the loss; hinges take targets -1 and +1."""
    if loss == LOGISTIC:
        tail = math.exp(-abs(z))
        p = 1.0 / (1.0 + tail)
        if z < 0.0:
            p = tail * p
        return p - target, max(z, 0.0) + math.log1p(tail) - target * z
    if loss == SQUARED:
        error = z - target
        return error, 0.5 * error * error
    slack = 1.0 - target * z
    if slack <= 0.0:
        return 0.0, 0.0
    if loss == HINGE:
        return -target, slack
    return -2.0 * target * slack, slack * slack


def residual(loss: int, z: Doubles, y: float) -> float:
    """Turn scores [outputs] into d loss / d scores, in place; return the loss."""
    outputs = len(z)
    total = 0.0
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
        return float(math.log(total) - true)
    for o in range(outputs):
        target = y
        if outputs > 1:
            target = 1.0 if int(y) == o else -1.0
        z[o], each = scalar(loss, z[o], target)
        total += each
    return total


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


def dense(
    loss: int,
    rate: float,
    decay: float,
    n: int,
    source: Counts,
    slot: Counts,
    draw: Counts,
    buffer_x: Singles,
    buffer_y: Doubles,
    x: Singles,
    y: Doubles,
    delta: Doubles,
    w: Doubles,
    g: Doubles,
) -> float:
    """Do the planned iterations on dense rows; return the sum of the losses."""
    width, outputs = x.shape[1], len(w)
    z = np.empty(outputs)
    total = 0.0
    for k in range(len(draw)):
        s = slot[k]
        if s >= 0:
            if s == n:
                n += 1
            else:
                for o in range(outputs):
                    for j in range(width):
                        g[o, j] -= delta[s, o] * x[s, j]
                    g[o, width] -= delta[s, o]
            x[s, :] = buffer_x[source[k], :]
            y[s] = buffer_y[source[k]]
            delta[s, :] = 0.0
        i = draw[k]
        if i < 0:
            continue
        for o in range(outputs):
            reach = 0.0
            for j in range(width):
                reach += w[o, j] * x[i, j]
            z[o] = reach + w[o, width]
        total += residual(loss, z, y[i])
        share = rate / n
        for o in range(outputs):
            change = z[o] - delta[i, o]
            delta[i, o] = z[o]
            down = rate * change
            for j in range(width):
                w[o, j] = decay * w[o, j] - share * g[o, j] - down * x[i, j]
                g[o, j] += change * x[i, j]
            w[o, width] -= share * g[o, width] + down
            g[o, width] += change
    return total


def sparse(
    loss: int,
    rate: float,
    decay: float,
    n: int,
    source: Counts,
    slot: Counts,
    draw: Counts,
    columns: Columns,
    values: Singles,
    buffer_start: Counts,
    buffer_length: Columns,
    buffer_y: Doubles,
    start: Counts,
    length: Columns,
    y: Doubles,
    delta: Doubles,
    table: Doubles,
    bias: Doubles,
    clock: Doubles,
) -> float:
    """Do the planned iterations on sparse rows; return the sum of the losses."""
    outputs = delta.shape[1]
    z = np.empty(outputs)
    due, scale = clock[0], clock[1]
    total = 0.0
    for k in range(len(draw)):
        s = slot[k]
        if s >= 0:
            if s == n:
                n += 1
            else:
                for o in range(outputs):
                    for p in range(start[s], start[s] + length[s]):
                        gone = delta[s, o] * values[p]
                        table[columns[p], o] -= due * gone
                        table[columns[p], outputs + o] -= gone
                    bias[1, o] -= delta[s, o]
            b = source[k]
            start[s], length[s], y[s] = buffer_start[b], buffer_length[b], buffer_y[b]
            delta[s, :] = 0.0
        i = draw[k]
        if i < 0:
            continue
        first, end = start[i], start[i] + length[i]
        for o in range(outputs):
            reach = 0.0
            for p in range(first, end):
                j = columns[p]
                reach += (table[j, o] - due * table[j, outputs + o]) * values[p]
            z[o] = scale * reach + bias[0, o]
        total += residual(loss, z, y[i])
        scale *= decay
        due += rate / (n * scale)
        for o in range(outputs):
            change = z[o] - delta[i, o]
            delta[i, o] = z[o]
            down = change * (due - rate / scale)
            for p in range(first, end):
                j = columns[p]
                table[j, o] += down * values[p]
                table[j, outputs + o] += change * values[p]
            bias[0, o] -= rate * (change + bias[1, o] / n)
            bias[1, o] += change
    clock[0], clock[1] = due, scale
    return total


def lose_rating(lost: Doubles, due: float, u: Doubles, v: Doubles) -> None:
    """Take the gradient of an evicted rating out of the sums of its rows."""
    rank = len(lost) // 2
    size = rank + 1
    for f in range(rank):
        u[f] -= due * lost[f]
        v[f] -= due * lost[rank + f]
        u[size + f] -= lost[f]
        v[size + f] -= lost[rank + f]
    for row in (u, v):
        row[rank] -= due * lost[2 * rank]
        row[size + rank] -= lost[2 * rank]


def factors(
    rate: float,
    l2: float,
    n: int,
    source: Counts,
    slot: Counts,
    draw: Counts,
    buffer_pair: Columns,
    buffer_y: Doubles,
    pair: Columns,
    y: Doubles,
    delta: Doubles,
    users: Doubles,
    items: Doubles,
    mean: Doubles,
    clock: Doubles,
) -> float:
    """Do the planned iterations on ratings; return the sum of the losses."""
    size = users.shape[1] // 2
    rank = size - 1
    due = clock[0]
    total = 0.0
    for k in range(len(draw)):
        s = slot[k]
        if s >= 0:
            if s == n:
                n += 1
            else:
                lose_rating(delta[s], due, users[pair[s, 0]], items[pair[s, 1]])
                mean[1] -= delta[s, 2 * rank]
            pair[s, :] = buffer_pair[source[k], :]
            y[s] = buffer_y[source[k]]
            delta[s, :] = 0.0
        i = draw[k]
        if i < 0:
            continue
        u, v, own = users[pair[i, 0]], items[pair[i, 1]], delta[i]
        error = mean[0] + u[rank] + v[rank] - due * (u[size + rank] + v[size + rank]) - y[i]
        for f in range(rank):
            error += (u[f] - due * u[size + f]) * (v[f] - due * v[size + f])
        total += 0.5 * error * error
        before = due
        due += rate / n
        down = due - rate
        for f in range(rank):
            p, q = u[f] - before * u[size + f], v[f] - before * v[size + f]
            change_p, change_q = error * q - own[f], error * p - own[rank + f]
            own[f], own[rank + f] = error * q, error * p
            u[f] += down * change_p - rate * l2 * p
            v[f] += down * change_q - rate * l2 * q
            u[size + f] += change_p
            v[size + f] += change_q
        change = error - own[2 * rank]
        own[2 * rank] = error
        u[rank] += down * change
        v[rank] += down * change
        u[size + rank] += change
        v[size + rank] += change
        mean[0] -= rate * (change + mean[1] / n)
        mean[1] += change
    clock[0] = due
    return total
