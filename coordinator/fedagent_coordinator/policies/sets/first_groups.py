"""Quick-Init's cold start: groups played once, and the exact scores they give clients.

Groups are drawn lazily among clients that were in none, the last one topped up from earlier
ones; it ends for good when no such client can be chosen. A group without an opinion is
retried once. A client's score is the mean reward of its groups. Clients without one (their
group failed twice, or they came later) are a class that scores the mean of all others' scores.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import BoolArray, FloatArray, IntArray
from fedagent_coordinator.policies.state import ArrayState, bools, flag, floats, ints

from .subset_enumeration import ExactArray, RankedClients

_NONE: IntArray = np.empty(0, dtype=np.int64)


class ColdStart(ArrayState):
    """Groups so far, and the clients that were in one; `version` grows when scores may change."""

    _group_members = ints("members")
    _group_sizes = ints("groups")
    _group_rewards = floats("groups")
    _covered = bools("covered")
    _retry = ints("retried", ascending=True)
    warm = flag()

    def __init__(self) -> None:
        self.version = 0

    def draw(self, there: BoolArray, size: int, rng: np.random.Generator) -> IntArray | None:
        """Return candidates of this slot's group, best first; None if no client is left.

        Clients that were in no group come first, in random order, then the others to
        top up if fewer than K are new; a group that is to be retried is all there is.
        """
        if self.warm:
            return None
        again = self._retry[there[self._retry]]
        if len(again):
            return again
        covered = self._known(len(there))
        fresh = np.flatnonzero(there & ~covered).astype(np.int64)
        if not len(fresh):
            return None
        if len(fresh) >= size:
            return rng.permutation(fresh)
        earlier = np.flatnonzero(there & covered).astype(np.int64)
        return np.concatenate((rng.permutation(fresh), rng.permutation(earlier)))

    def learn(self, clients: IntArray, reward: float, there: BoolArray) -> bool:
        """Take in the slot that these ascending clients played; return whether it was a group.

        The reward is NaN if there was no opinion; `there`, bool[N], could have been chosen.
        """
        if self.warm:
            return False
        covered = self._known(len(there))
        retried = len(self._retry) > 0 and bool(np.isin(clients, self._retry).all())
        if not retried and covered[clients].all():
            # No new client could be had: waiting on would keep the run from selecting.
            self.warm, self._retry = True, _NONE
            return False
        if math.isnan(reward) and not retried:
            self._covered, self._retry = covered, clients
            return True
        if not math.isnan(reward):
            self._group_members = np.append(self._group_members, clients)
            self._group_sizes = np.append(self._group_sizes, len(clients))
            self._group_rewards = np.append(self._group_rewards, reward)
            self.version += 1
        if retried:
            self._retry = _NONE
        covered[clients] = True
        self._covered = covered
        self.warm = not len(self._retry) and not (there & ~covered).any()
        return True

    def scores(self, total: int) -> "Scores":
        """Return the exact scores of all `total` clients."""
        return _scores(self._group_members, self._group_sizes, self._group_rewards, total)

    def problems(self) -> Iterator[str]:
        """Refuse groups that contradict their members, or each other."""
        members, sizes = self._group_members, self._group_sizes
        if sizes.sum() != len(members) or not sizes.all():
            yield "has groups that contradict their members"
        if max(members.max(initial=-1), self._retry.max(initial=-1)) >= len(self._covered):
            yield "has groups of clients that it does not know"
        first = np.zeros(len(members), dtype=np.bool_)
        first[np.cumsum(sizes)[:-1]] = True
        if ((np.diff(members) <= 0) & ~first[1:]).any() or not self._covered[members].all():
            yield "has a group that is none"

    def restored(self) -> None:
        """Mark scores as changed."""
        self.version += 1

    def _known(self, total: int) -> BoolArray:
        grown = np.zeros(total, dtype=np.bool_)
        known = self._covered[:total]
        grown[: len(known)] = known
        return grown


@dataclass(frozen=True, eq=False)
class Scores:
    """Exact scores of N clients: whole numbers on a common scale."""

    level: IntArray  # int64[N], each client's place among the distinct scores, 0 the highest
    values: ExactArray  # object[V], the distinct scores times `scale`, decreasing
    scale: int

    @cached_property
    def order(self) -> IntArray:
        """int64[N], clients by (-score, index)."""
        return np.argsort(self.level, kind="stable").astype(np.int64)

    @cached_property
    def rank(self) -> IntArray:
        """int64[N], each client's place in `order`."""
        rank = np.empty(len(self.order), dtype=np.int64)
        rank[self.order] = np.arange(len(rank))
        return rank

    def line(self, there: BoolArray) -> RankedClients:
        """Return the clients that are there (bool[N]), best first."""
        return RankedClients.of(there, order=self.order, level=self.level, values=self.values)

    @cached_property
    def means(self) -> FloatArray:
        """float64[N], the nearest float of each client's score."""
        return np.array([value / self.scale for value in self.values.tolist()])[self.level]

    def mean(self, total: int, size: int) -> float:
        """Return the nearest float of an exact sum over `size` clients, per client."""
        return total / (self.scale * size)

    def totals(self, rows: npt.NDArray[np.integer]) -> ExactArray:
        """Return the exact sum of each row of clients, object[A]."""
        return np.asarray(self.values[self.level[rows]].sum(axis=1), dtype=np.object_)


def _scores(members: IntArray, sizes: IntArray, rewards: FloatArray, total: int) -> Scores:
    worth = [Fraction(value) for value in rewards.tolist()]
    group_of = np.repeat(np.arange(len(sizes)), sizes)
    times = np.bincount(members, minlength=total)
    kind = np.full(total, len(worth), dtype=np.int64)
    kind[members] = group_of
    value = [*worth, Fraction(0)]
    several: dict[int, list[int]] = {int(client): [] for client in np.flatnonzero(times > 1)}
    for at in np.flatnonzero(times[members] > 1):
        several[int(members[at])].append(int(group_of[at]))
    seen: dict[tuple[int, ...], int] = {}
    for client, its in several.items():
        kind[client] = seen.setdefault(tuple(its), len(value))
        if kind[client] == len(value):
            value.append(sum((worth[group] for group in its), Fraction(0)) / len(its))
    scored = np.bincount(kind, minlength=len(value)).tolist()
    scored[len(worth)] = 0
    if sum(scored):
        whole = sum((v * k for v, k in zip(value, scored, strict=True)), Fraction(0))
        value[len(worth)] = whole / sum(scored)
    scale = math.lcm(*(fraction.denominator for fraction in value))
    exact = [int(fraction * scale) for fraction in value]
    distinct = sorted(set(exact), reverse=True)
    place = {number: at for at, number in enumerate(distinct)}
    levels = np.array([place[number] for number in exact], dtype=np.int64)
    return Scores(levels[kind], np.array(distinct, dtype=np.object_), scale)
