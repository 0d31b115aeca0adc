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

    for inner in (scalar, residual, lose_row, catch_up, lose_rating):
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


def lose_row(
    columns: Columns,
    values: Singles,
    lost: Doubles,
    rate: float,
    past: float,
    table: Doubles,
    bias: Doubles,
) -> None:
    """Take the gradient of an evicted sparse row out of the sums."""
    outputs = len(lost)
    last = 2 * outputs
    for p in range(len(columns)):
        j = columns[p]
        lag = rate * (past - table[j, last])
        for o in range(outputs):
            table[j, o] -= lag * table[j, outputs + o]
            table[j, outputs + o] -= lost[o] * values[p]
        table[j, last] = past
    for o in range(outputs):
        bias[1, o] -= lost[o]


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
    last = 2 * outputs
    z = np.empty(outputs)
    change = np.empty(outputs)
    past, scale = clock[0], clock[1]
    total = 0.0
    for k in range(len(draw)):
        s = slot[k]
        if s >= 0:
            if s == n:
                n += 1
            else:
                at = slice(start[s], start[s] + length[s])
                lose_row(columns[at], values[at], delta[s], rate, past, table, bias)
            b = source[k]
            start[s], length[s], y[s] = buffer_start[b], buffer_length[b], buffer_y[b]
            delta[s, :] = 0.0
        i = draw[k]
        if i < 0:
            continue
        first, end = start[i], start[i] + length[i]
        z[:] = 0.0
        for p in range(first, end):
            j = columns[p]
            lag = rate * (past - table[j, last])
            for o in range(outputs):
                table[j, o] -= lag * table[j, outputs + o]
                z[o] += table[j, o] * values[p]
        for o in range(outputs):
            z[o] = scale * z[o] + bias[0, o]
        total += residual(loss, z, y[i])
        for o in range(outputs):
            change[o] = z[o] - delta[i, o]
            delta[i, o] = z[o]
        scale *= decay
        passed = 1.0 / (n * scale)
        down = rate / scale
        share = rate * passed
        past += passed
        for p in range(first, end):
            j = columns[p]
            for o in range(outputs):
                table[j, o] -= share * table[j, outputs + o] + down * change[o] * values[p]
                table[j, outputs + o] += change[o] * values[p]
            table[j, last] = past
        for o in range(outputs):
            bias[0, o] -= rate * (change[o] + bias[1, o] / n)
            bias[1, o] += change[o]
    clock[0], clock[1] = past, scale
    return total


def catch_up(row: Doubles, rate: float, past: float) -> None:
    """Pay what is due of a user's or item's row."""
    size = len(row) // 2
    late = rate * (past - row[2 * size])
    for f in range(size):
        row[f] -= late * row[size + f]
    row[2 * size] = past


def lose_rating(lost: Doubles, rate: float, past: float, u: Doubles, v: Doubles) -> None:
    """Take the gradient of an evicted rating out of the sums of its rows."""
    rank = len(lost) // 2
    size = rank + 1
    catch_up(u, rate, past)
    catch_up(v, rate, past)
    for f in range(rank):
        u[size + f] -= lost[f]
        v[size + f] -= lost[rank + f]
    u[size + rank] -= lost[2 * rank]
    v[size + rank] -= lost[2 * rank]


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
    rank, last = size - 1, 2 * size
    past = clock[0]
    total = 0.0
    for k in range(len(draw)):
        s = slot[k]
        if s >= 0:
            if s == n:
                n += 1
            else:
                lose_rating(delta[s], rate, past, users[pair[s, 0]], items[pair[s, 1]])
                mean[1] -= delta[s, 2 * rank]
            pair[s, :] = buffer_pair[source[k], :]
            y[s] = buffer_y[source[k]]
            delta[s, :] = 0.0
        i = draw[k]
        if i < 0:
            continue
        u, v = users[pair[i, 0]], items[pair[i, 1]]
        catch_up(u, rate, past)
        catch_up(v, rate, past)
        error = mean[0] + u[rank] + v[rank] - y[i]
        for f in range(rank):
            error += u[f] * v[f]
        total += 0.5 * error * error
        past += 1.0 / n
        u[last] = v[last] = past
        for f in range(rank):
            p, q = u[f], v[f]
            change_p, change_q = error * q - delta[i, f], error * p - delta[i, rank + f]
            delta[i, f], delta[i, rank + f] = error * q, error * p
            u[f] = p - rate * (change_p + u[size + f] / n + l2 * p)
            v[f] = q - rate * (change_q + v[size + f] / n + l2 * q)
            u[size + f] += change_p
            v[size + f] += change_q
        change = error - delta[i, 2 * rank]
        delta[i, 2 * rank] = error
        u[rank] -= rate * (change + u[size + rank] / n)
        v[rank] -= rate * (change + v[size + rank] / n)
        mean[0] -= rate * (change + mean[1] / n)
        u[size + rank] += change
        v[size + rank] += change
        mean[1] += change
    clock[0] = past
    return total
