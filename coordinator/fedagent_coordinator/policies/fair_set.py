"""The clients of a round: the exact solution of P4 (ALGORITHMS section 4, RBCS-F Algorithm 1).

Minimise V max(tau over S) - sum(Z over S) over sets S of k clients. Sort by tau: the
best set with its slowest client in a given prefix holds the k largest Z of that
prefix, so f(p) = V tau_p - (sum of the k largest Z of the first p) over p >= k has the
optimum as its minimum.

All prefixes are halved at once, with arrays: a block of b clients can push at most the b
least of the current k out, so that is all a block needs to know of what came before. The
sums at both ends bound f inside the block, and blocks that cannot beat the best are dropped.
"""

from dataclasses import dataclass

import numpy as np

from .base import BoolArray, FloatArray, IntArray

_SORTED = 512
"""Rows up to this length are sorted: faster than parting them, one call per row."""


def fair_set(
    tau: FloatArray,
    queue: FloatArray,
    k: int,
    V: float,  # noqa: N803 - the paper's name
    rng: np.random.Generator,
) -> IntArray:
    """Return an optimal set of k clients, int64[k], in no particular order.

    Of clients with equal queues the faster one is taken, of those that are equal in both any, by
    `rng`. `tau` in seconds and `queue` are finite.
    """
    if k == 0:
        return np.empty(0, dtype=np.int64)
    client = rng.permutation(len(tau))
    client = client[np.argsort(tau[client], kind="stable")]
    z = queue[client]
    prefix = _best_prefix(V * tau[client], z, k)
    z = z[:prefix]
    least = np.partition(z, prefix - k)[prefix - k]
    above = np.flatnonzero(z > least)
    level = np.flatnonzero(z == least)[: k - len(above)]
    return client[np.concatenate((above, level))].astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """R runs of b consecutive clients each; the last one may be padded.

    Attributes:
        least: float64[R, b], the b least of the k largest queues before the block,
            filled up with values larger than any.
    """

    start: IntArray  # int64[R], clients before the block
    delay: FloatArray  # float64[R, b], V tau, increasing; inf in the padding
    z: FloatArray  # float64[R, b], queues; in the padding so small that they never count
    least: FloatArray
    before: FloatArray  # float64[R], sum of the k largest queues before the block
    after: FloatArray  # float64[R], the same behind the block

    def halved(self, best: float) -> tuple["_Blocks", FloatArray]:
        half = self.z.shape[1] // 2
        merged = np.concatenate((self.least, self.z[:, :half]), axis=1)
        _part(merged, half, 2 * half)
        middle = self.before + self.z[:, :half].sum(axis=1) - merged[:, :half].sum(axis=1)
        objective = self.delay[:, half - 1] - middle
        best = min(best, float(objective.min()))
        left: BoolArray = self.delay[:, 0] - middle < best
        right: BoolArray = self.delay[:, half] - self.after < best
        kept = self.least[left]
        _part(kept, half)
        halves = _Blocks(
            start=np.concatenate((self.start[left], self.start[right] + half)),
            delay=np.concatenate((self.delay[left, :half], self.delay[right, half:])),
            z=np.concatenate((self.z[left, :half], self.z[right, half:])),
            least=np.concatenate((kept[:, :half], merged[right, half : 2 * half])),
            before=np.concatenate((self.before[left], middle[right])),
            after=np.concatenate((middle[left], self.after[right])),
        )
        return halves, objective


def _part(rows: FloatArray, *bounds: int) -> None:
    """Order each row in place so far that its `bound` least come first, for each bound."""
    if rows.shape[1] <= _SORTED:
        rows.sort(axis=1)
    else:
        rows.partition([bound - 1 for bound in bounds], axis=1)


def _best_prefix(delay: FloatArray, z: FloatArray, k: int) -> int:
    """Return the p in k..N of least f(p); of equal ones any, the same in every run."""
    n = len(z)
    first = float(z[:k].sum())
    best, prefix = float(delay[k - 1]) - first, k
    if n == k:
        return prefix
    blocks = _whole(delay, z, k, first)
    if float(delay[-1]) - float(blocks.after[0]) < best:
        best, prefix = float(delay[-1]) - float(blocks.after[0]), n
    while len(blocks.start) and blocks.z.shape[1] > 1:
        starts, half = blocks.start, blocks.z.shape[1] // 2
        blocks, objective = blocks.halved(best)
        at = int(np.argmin(objective))
        if objective[at] < best:
            best, prefix = float(objective[at]), int(starts[at]) + half
    return prefix


def _whole(delay: FloatArray, z: FloatArray, k: int, first: float) -> _Blocks:
    n = len(z)
    size = 1 << (n - k - 1).bit_length()
    padding = size - (n - k)
    least = np.full(size, z.max() + 1.0)
    keep = min(k, size)
    least[:keep] = np.partition(z[:k], keep - 1)[:keep]
    return _Blocks(
        start=np.array([k], dtype=np.int64),
        delay=np.concatenate((delay[k:], np.full(padding, np.inf)))[None],
        z=np.concatenate((z[k:], np.full(padding, z.min())))[None],
        least=least[None],
        before=np.array([first]),
        after=np.array([np.partition(z, n - k)[n - k :].sum()]),
    )
