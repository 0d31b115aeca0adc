"""What an edge says of its agents when a round opens: their contexts as columns."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedagent_protocol.columns import Columns, claim_column, claims_in, pack
from fedagent_protocol.messages import ContextReport, RoundColumns, RoundOpen
from fedagent_protocol.signatures import CLAIM_BYTES

MAX_FEATURES = 32
MAX_ROWS_BYTES = 600_000
"""With the ids that are named below the limit of a payload."""
_ROW_BYTES = 25 + CLAIM_BYTES


@dataclass(frozen=True, slots=True)
class Listing:
    """The ids from `known` on, which a coordinator has not; those from `named` on wait."""

    known: int
    named: int
    new_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """The newest context of one agent, by its index in the list, and when it came."""

    index: int
    context: ContextReport
    at: float


def most_rows(contexts: Sequence[ContextReport]) -> int:
    """Return how many of these fit into one message."""
    return MAX_ROWS_BYTES // (_ROW_BYTES + 4 * len(_common_features(contexts)))


def columns_of(
    ask: RoundOpen, epoch: str, listing: Listing, rows: Sequence[Row], *, model: str, now: float
) -> RoundColumns:
    """Return the answer to `ask`."""
    contexts = [row.context for row in rows]
    names = _common_features(contexts)
    values = [[context.features.get(name, np.nan) for name in names] for context in contexts]
    columns = Columns(
        features=names,
        session=np.array([row.index for row in rows], np.int32),
        price=np.array([context.price for context in contexts], np.int64),
        context_seq=np.array([context.seq for context in contexts], np.int64),
        age_ms=np.array([(now - row.at) * 1000 for row in rows]).astype(np.int32),
        available=np.array([context.available for context in contexts], np.bool_),
        values=_as_float32(values, len(rows), len(names)),
        claim=claims_in(claim_column([context.claim for context in contexts]), len(rows)),
    )
    return RoundColumns(
        run=ask.run,
        round=ask.round,
        epoch=epoch,
        known=listing.known,
        new_ids=listing.new_ids,
        features=columns.features,
        model=model,
        **pack(columns),
    )


def _common_features(contexts: Sequence[ContextReport]) -> tuple[str, ...]:
    """Return the features most agents report, so that one agent cannot push them out."""
    counts = Counter(name for context in contexts for name in context.features)
    most = sorted(counts, key=lambda name: (-counts[name], name))[:MAX_FEATURES]
    return tuple(sorted(most))


def _as_float32(
    values: list[list[float]], rows: int, width: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return float32[rows, width]; what is too large for float32 is as good as unknown."""
    array = np.array(values, np.float64).reshape(rows, width)
    array[np.abs(array) > np.finfo(np.float32).max] = np.nan
    return array.astype(np.float32)
