"""Rows of a query as records: a column is named like the field that it fills."""

import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from fedagent_coordinator.errors import InvalidViewError, StoreDamagedError

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run; once it is `scaled`, its recipe has the scaling of features.

    `extended` is how many rounds it is to have, where that is not in its recipe; `origin` the
    digest of the model it began from, empty for that of the seed.
    """

    run_id: str
    recipe_digest: str
    recipe: str
    scaled: bool
    extended: int | None
    seed: int
    unlimited: bool
    origin: str
    begun_ms: int
    ended_ms: int | None
    end_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One round in one line; `paid_micro` is of its clients, `rented` the id of the edge."""

    round: int
    state: str
    policy: str
    ordered: int
    in_time: int
    used: int
    paid_micro: int
    reason: str
    timing_ms: Mapping[str, float]
    metrics: Mapping[str, float]
    opened_ms: int
    closed_ms: int | None
    iterations: int = 0
    rented: str = ""
    rent_micro: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Duration of the round: of its steps, else from opening to closing it."""
        wall_ms = (self.closed_ms or self.opened_ms) - self.opened_ms
        return (sum(self.timing_ms.values()) or wall_ms) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRow:
    """How one ordered client ended a round; times in seconds, None if unknown."""

    round: int
    client: int
    agent: str
    edge: int
    edge_id: str
    price_micro: int
    status: str
    in_time: bool
    used: bool
    paid_micro: int
    censored: bool
    tau_s: float
    dt_s: float | None
    lc_s: float | None
    ut_s: float | None
    num_samples: int
    arrivals: int
    weight: float | None
    norm: float | None
    loss: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRow:
    """One order of a client; `status` is its round's while nothing is known of it."""

    round: int
    edge_id: str
    price_micro: int
    status: str
    reason: str
    in_time: bool
    tau_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRow:
    """How one round ended at one edge; `failed` is empty when it has a new model."""

    round: int
    edge: int
    edge_id: str
    label: str
    ordered: int
    in_time: int
    used: int
    spent_micro: int
    failed: str
    model: str
    weight: float
    local_steps: float = 0.0
    norm: float = 0.0


@dataclass(frozen=True, slots=True)
class EdgeTotal:
    """What the rounds of a run came to at one edge; `failed` is of the last one.

    Up to round `forgotten` what it learnt counts in no merge.
    """

    edge_id: str
    label: str = ""
    spent_micro: int = 0
    rent_micro: int = 0
    ordered: int = 0
    in_time: int = 0
    last_round: int = 0
    failed: str = ""
    forgotten: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """What one client did in a run."""

    client: int
    agent: str
    label: str = ""
    ordered: int = 0
    in_time: int = 0
    used: int = 0
    paid_micro: int = 0
    last_round: int | None = None
    last_status: str | None = None
    last_reason: str = ""
    released: int = 0  # updates that may have left it; what it declined is not among them

    @property
    def name(self) -> str:
        """What people call it, else the start of its id."""
        return self.label or self.agent[:8]


@dataclass(frozen=True, slots=True)
class Balance:
    """Where the money of a run is; granted = free + reserved + settled."""

    granted_micro: int = 0
    free_micro: int = 0
    reserved_micro: int = 0
    settled_micro: int = 0
    voided_micro: int = 0


def unpacked(
    data: bytes, kind: type[Record], dec_hook: Callable[[type, Any], Any] | None = None
) -> Record:
    """Return what `records` has packed, or the fields of it that `kind` has.

    Raises:
        StoreDamagedError: The bytes are no such record.
    """
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=kind, dec_hook=dec_hook)
    except (msgspec.DecodeError, zlib.error, ValueError, InvalidViewError) as error:
        raise StoreDamagedError(f"a stored {kind}", f"cannot be read: {error}") from error


def fetch(
    sql: sqlite3.Connection, kind: type[Record], query: str, values: Sequence[object] = ()
) -> list[Record]:
    """Return what a query finds."""
    found = [dict(row) for row in sql.execute(query, values)]
    # Not strict: SQLite has 0 and 1 for a bool.
    return msgspec.convert(found, list[kind], strict=False)  # type: ignore[valid-type]  # checked at run time


@contextmanager
def unmoved(sql: sqlite3.Connection) -> Iterator[None]:
    """See one state of the database in all queries of this context."""
    sql.execute("BEGIN")
    try:
        yield
    finally:
        sql.execute("ROLLBACK")
