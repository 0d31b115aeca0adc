"""From the columns of all edges to the one view that a policy sees."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import NOT_FEATURES, IntArray, RoundView
from fedagent_protocol.messages import STARTS_BITS

from .heard import Observation
from .terms import SignedTerms

Scalar = TypeVar("Scalar", bound=np.generic)

FRESH_S = 45.0
"""Age at which a context no longer counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """A view and what stands behind it.

    Attributes:
        left_out: Rows that are no pairs, by reason (``stale``, ``no_feature``, ``unsigned``), and
            clients that are not asked although they would train (``declined``).
    """

    view: RoundView
    client_seq: npt.NDArray[np.int64]  # int64[N], the context report each client was evaluated by
    left_out: Counter[str]

    def without(self, clients: npt.NDArray[np.int64]) -> "Observed":
        """Return the same with these clients unavailable, because they have just declined."""
        if not len(clients):
            return self
        available = self.view.client_available.copy()
        available[clients] = False
        seen = self.view.client_available[np.unique(self.view.pair_client)].sum()
        left = available[np.unique(self.view.pair_client)].sum()
        return Observed(
            replace(self.view, client_available=available),
            self.client_seq,
            self.left_out + Counter({"declined": int(seen - left)}),
        )


@dataclass(slots=True)
class ClientStarts:
    """How often each client is known to have started: int64[N], 0 of one that never said so."""

    known: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def note(self, client_seq: npt.NDArray[np.int64]) -> IntArray:
        """Take in the newest reports, int64[N] with 0 of none; no number falls."""
        starts = client_seq >> STARTS_BITS
        size = len(self.known)
        starts[:size] = np.maximum(starts[:size], self.known)
        self.known = starts
        return starts


def merge_observations(
    observations: Sequence[Observation],
    *,
    round_: int,
    now: float,
    sizes: tuple[int, int],
    needs: frozenset[str],
    edge_budget: npt.NDArray[np.int64],
    deadline_s: float = math.inf,
    model_bytes: int = 0,
    terms: SignedTerms | None = None,
) -> Observed:
    """Return the view of all edges, of which none has two observations; `sizes` are N and M.

    One agent that several edges see has the price and the availability of its newest report
    (the largest seq; of equals, the freshest); in a site with certificates, the newest that it
    has signed, by `terms`. A row older than `FRESH_S`, without a feature that the policy needs, or
    not its agent's word is no pair.
    """
    ordered = sorted(observations, key=lambda seen: seen.edge)
    names = tuple(sorted({name for seen in ordered for name in seen.columns.features}))
    client = joined([seen.client for seen in ordered], np.int32)
    edge = joined([np.full(len(seen.client), seen.edge) for seen in ordered], np.int32)
    age_s = joined(
        [seen.columns.age_ms / 1000.0 + (now - seen.received_at) for seen in ordered], np.float64
    )
    seq = joined([seen.columns.context_seq for seen in ordered], np.int64)
    values = _aligned(ordered, names)
    fresh = age_s <= FRESH_S
    stale = int((~fresh).sum())
    unsigned = 0
    if terms is not None:
        refused = terms.refused(ordered, client, fresh)
        unsigned, fresh = int(refused.sum()), fresh & ~refused
    wanted = [names.index(name) for name in needs - NOT_FEATURES if name in names]
    complete = np.isfinite(values[:, wanted]).all(axis=1)

    # Oldest first, so that the newest report is written last and stays.
    rows = np.flatnonzero(fresh)
    rows = rows[np.lexsort((-rows, -age_s[rows], seq[rows]))]

    def by_client(column: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """Return the newest report of each of N clients; 0 of none."""
        table = np.zeros(sizes[0], dtype=column.dtype)
        table[client[rows]] = column[rows]
        return table

    pairs = fresh & complete
    view = RoundView(
        round=round_,
        pair_client=client[pairs],
        pair_edge=edge[pairs],
        pair_features=values[pairs],
        feature_names=names,
        client_price=by_client(joined([seen.columns.price for seen in ordered], np.int64)),
        client_available=by_client(joined([seen.columns.available for seen in ordered], np.bool_)),
        edge_budget=edge_budget,
        deadline_s=deadline_s,
        model_bytes=model_bytes,
    )
    no_feature = int((fresh & ~complete).sum())
    left_out = Counter(stale=stale, no_feature=no_feature, unsigned=unsigned)
    return Observed(view, by_client(seq), +left_out)


def joined(parts: list[npt.NDArray[np.generic]], scalar: type[np.generic]) -> npt.NDArray:  # type: ignore[type-arg] # the scalar decides
    """Return columns as one, empty of none."""
    return np.concatenate(parts).astype(scalar) if parts else np.zeros(0, dtype=scalar)


def _aligned(ordered: list[Observation], names: tuple[str, ...]) -> npt.NDArray[np.float32]:
    """Return float32[P, F] with NaN where an edge's agents report no such feature."""
    total = sum(len(seen.client) for seen in ordered)
    values = np.full((total, len(names)), np.nan, dtype=np.float32)
    start = 0
    for seen in ordered:
        stop = start + len(seen.client)
        where = [names.index(name) for name in seen.columns.features]
        values[start:stop, where] = seen.columns.values
        start = stop
    return values
