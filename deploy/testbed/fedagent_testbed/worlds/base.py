"""What a study needs of a world: a view of each round, and how the ordered pairs end."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedagent_coordinator.policies import Feedback, RoundView
from fedagent_coordinator.policies.base import BoolArray, Ending, FloatArray, IntArray
from fedagent_task.aggregation import RoundRule

NEVER = 1e15
"""Seconds beyond every deadline that a recipe can set."""


def spawned_rng(seed: int, *key: int) -> np.random.Generator:
    """Return a generator that follows from a seed and a use of it."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class World(Protocol):
    """One seeded world; its draws do not depend on decisions, but where it is documented."""

    def view(self, round_: int) -> RoundView:
        """Return a round as policies see it, with the truth for oracles."""

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Return how training ends for these pairs of the last view."""


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Stages of every pair of a round, seconds: float64[P] each."""

    dt_s: FloatArray
    lc_s: FloatArray
    ut_s: FloatArray

    @property
    def tau_s(self) -> FloatArray:
        """Order to whole update."""
        return self.dt_s + self.lc_s + self.ut_s


def outcome(
    view: RoundView, pairs: IntArray, times: Times, *, min_updates: int, max_wait_s: float
) -> Feedback:
    """Return how a round ends by the rule of the edges.

    What comes after an edge has stopped waiting is neither known nor paid: its tau is the wait.
    """
    rule = RoundRule(view.deadline_s, max_wait_s, min_updates)
    tau, edge = times.tau_s[pairs], view.pair_edge[pairs]
    used = np.zeros(len(pairs), dtype=np.bool_)
    wait = np.full(len(pairs), view.deadline_s)
    for m in np.unique(edge).tolist():
        mine = np.flatnonzero(edge == m)
        ended = rule.settle(tau[mine])
        used[mine], wait[mine] = ended.used, ended.wait_s
    known, in_time = tau <= wait, tau <= view.deadline_s
    late = np.where(known, Ending.LATE, Ending.MISSED)
    unknown = np.where(known, 0.0, np.nan)
    return arrived(
        view,
        pairs,
        in_time,
        np.where(known, tau, wait),
        used=used,
        dt_s=times.dt_s[pairs] + unknown,
        lc_s=times.lc_s[pairs] + unknown,
        ut_s=times.ut_s[pairs] + unknown,
        censored=~known,
        unpaid=~known,
        ending=np.where(in_time, Ending.IN_TIME, late).astype(np.int8),
    )


def arrived(
    view: RoundView, pairs: IntArray, in_time: BoolArray, tau_s: FloatArray, **known: Any
) -> Feedback:
    """Return the feedback of updates; those in time are used and paid, unless `known` differs."""
    unknown, nothing = np.full(len(pairs), np.nan), np.zeros(len(pairs), dtype=np.int64)
    columns = {
        "used": in_time,
        **dict.fromkeys(("dt_s", "lc_s", "ut_s", "seconds_per_iteration"), unknown),
        "censored": np.zeros(len(pairs), dtype=np.bool_),
        "unpaid": ~in_time,
        **dict.fromkeys(("arrivals", "num_samples"), nothing),
    }
    return Feedback(view=view, pairs=pairs, X=in_time, tau_s=tau_s, **{**columns, **known})


def starts(rng: np.random.Generator, *, rounds: int, every: int) -> BoolArray:
    """Return bool[T]: gaps are uniform on half to one and a half times `every`; 0 for never."""
    begun = np.zeros(rounds, dtype=np.bool_)
    if not every:
        return begun
    gaps = every * rng.uniform(0.5, 1.5, 2 + 2 * rounds // every)
    at = np.unique(np.maximum(np.cumsum(gaps).astype(np.int64), 1))
    begun[at[at < rounds]] = True
    return begun


def episodes(rng: np.random.Generator, *, rounds: int, every: int, length: int) -> BoolArray:
    """Return bool[T], true for `length` rounds from each of the `starts`."""
    begun = starts(rng, rounds=rounds, every=every).astype(np.int64)
    going = np.convolve(begun, np.ones(min(length, rounds), dtype=np.int64))[:rounds]
    return np.asarray(going > 0, dtype=np.bool_)
