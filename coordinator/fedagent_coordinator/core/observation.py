"""From the columns of all edges to the one view that a policy sees."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import NOT_FEATURES, BoolArray, IntArray, RoundView
from fedagent_protocol.columns import Columns
from fedagent_protocol.messages import LONGEST_PERIOD_S, SILENT_PERIODS
from fedagent_protocol.signed import is_claim, terms

Scalar = TypeVar("Scalar", bound=np.generic)

NOBODY: IntArray = np.zeros(0, dtype=np.int64)
FRESH_S = SILENT_PERIODS * LONGEST_PERIOD_S
"""Age at which a context no longer counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """The answer of one edge; `client` is int32[P], run-wide, and `model` what it holds.

    `ids` are the agents of its sessions.
    """

    edge: int
    client: npt.NDArray[np.int32]
    columns: Columns
    received_at: float
    model: str = ""
    edge_id: str = ""
    ids: Sequence[str] = ()


@dataclass(slots=True)
class SignedTerms:
    """What clients have signed that several edges name.

    Of such a client the rows are gone through from the newest to the first that it signed: those
    before it are not its word. An edge alone with a client is believed unless the client has
    signed something else before: it could keep the client's work from the run anyway.
    """

    unsigned: Counter[str] = field(default_factory=Counter)
    """By edge, rows of the last observation that were not their client's word."""
    _sign: set[int] = field(default_factory=set)
    """Who has signed something before."""

    def refused(
        self, ordered: Sequence[Observation], client: npt.NDArray[np.int32], fresh: BoolArray
    ) -> BoolArray:
        """Return bool[P], which of the fresh rows are not their client's word."""
        self.unsigned.clear()
        refused = np.zeros(len(client), dtype=np.bool_)
        rows = [(seen, at) for seen in ordered for at in range(len(seen.client))]
        by_client: dict[int, list[int]] = {}
        for row in np.flatnonzero(fresh).tolist():
            by_client.setdefault(int(client[row]), []).append(row)
        for one, group in by_client.items():
            if len(group) == 1 and one not in self._sign:
                continue
            number = {row: int(rows[row][0].columns.context_seq[rows[row][1]]) for row in group}
            for row in sorted(group, key=lambda row: -number[row]):
                if _is_signed(*rows[row]):
                    self._sign.add(one)
                    break
                refused[row] = True
                self.unsigned[rows[row][0].edge_id] += 1
        return refused


def _is_signed(seen: Observation, at: int) -> bool:
    c = seen.columns
    agent, seq = seen.ids[int(c.session[at])], int(c.context_seq[at])
    price, available = int(c.price[at]), bool(c.available[at])
    statement = terms(seen.edge_id, agent, seq=seq, price=price, available=available)
    return signed_by(agent, c.claim[at].tobytes() if len(c.claim) else b"", statement)


@functools.lru_cache(maxsize=20_000)
def signed_by(agent: str, claim: bytes, statement: bytes) -> bool:
    """Return whether an agent has signed a statement; an edge that repeats itself costs nothing."""
    return any(claim) and is_claim(claim, agent, statement)


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """A view and what stands behind it."""

    view: RoundView
    client_seq: npt.NDArray[np.int64]  # int64[N], the context report each client was evaluated by
    left_out: Counter[str]
    """Rows that are no pairs, by reason (``stale``, ``no_feature``, ``unsigned``), and clients that
    are not asked although they would train (``declined``)."""


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
    away: Callable[[IntArray], IntArray] = lambda _: NOBODY,
) -> Observed:
    """Return the view of all edges, of which none has two observations; `sizes` are N and M.

    `away` says by their newest reports, int64[N], which clients are left out for a while.
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
    newest, available = (
        by_client(seq),
        by_client(joined([seen.columns.available for seen in ordered], np.bool_)),
    )
    here = np.unique(client[pairs])
    declined = int(available[here].sum())
    available[away(newest)] = False
    declined -= int(available[here].sum())
    view = RoundView(
        round=round_,
        pair_client=client[pairs],
        pair_edge=edge[pairs],
        pair_features=values[pairs],
        feature_names=names,
        client_price=by_client(joined([seen.columns.price for seen in ordered], np.int64)),
        client_available=available,
        edge_budget=edge_budget,
        deadline_s=deadline_s,
        model_bytes=model_bytes,
    )
    no_feature = int((fresh & ~complete).sum())
    left_out = Counter(stale=stale, no_feature=no_feature, unsigned=unsigned, declined=declined)
    return Observed(view, newest, +left_out)


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
