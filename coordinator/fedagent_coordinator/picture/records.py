"""What the page and `/api` show; the OpenAPI document follows from these types.

Money is in micro-credits, times in seconds, or milliseconds since 1970 (`_ms`). Devices and
edges are named by their ids. A field that is left out has its default.
"""

from collections.abc import Mapping

from msgspec import Struct

from fedagent_coordinator.books.rows import Balance, OrderRow

from .alarms import Alarm
from .devices import DeviceCard
from .summary import RunSummary


class EdgeCard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One edge: who is connected there now, what it did in the whole run, and how that ended."""

    id: str
    name: str
    index: int
    devices: int = 0
    budget_micro: int = 0
    spent_micro: int = 0
    rent_micro: int = 0
    ordered: int = 0
    in_time: int = 0
    last_round: int = 0
    failed: str = ""


class Reach(Struct, frozen=True, kw_only=True):
    """The edges that a device reaches in the newest round: index, bit/s (0 unknown), ordered."""

    id: str
    edges: tuple[tuple[int, int, bool], ...]


class Bar(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One order of a round."""

    device: str
    edge: str
    price_micro: int
    status: str = "open"
    in_time: bool = False
    used: bool = False
    download_s: float | None = None
    train_s: float | None = None
    upload_s: float | None = None
    total_s: float | None = None


class Timeline(Struct, frozen=True, kw_only=True):
    """A round and its orders; `state` is `open`, `done` or `void`."""

    round: int
    state: str
    opened_ms: int
    deadline_s: float | None
    max_wait_s: float | None
    bars: tuple[Bar, ...]


class RoundCard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One round."""

    round: int
    state: str
    opened_ms: int
    seconds: float = 0.0
    ordered: int = 0
    in_time: int = 0
    used: int = 0
    paid_micro: int = 0
    rent_micro: int = 0
    reason: str = ""
    metrics: Mapping[str, float] = {}
    spent: tuple[int, ...] = ()
    """Of each edge, by its index."""
    opinion: float | None = None
    volunteers: int | None = None


class Waiting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device that asks to join; the code that it shows is told to who has the token."""

    id: str
    name: str
    role: str
    code: str = ""
    address: str
    software: str
    since_s: float


class Field(Struct, frozen=True, kw_only=True):
    """All that the page shows at one time; `version` counts up, from a new start at random."""

    epoch: str
    version: int
    at_ms: int
    run: RunSummary | None = None
    money: Balance | None = None
    edges: tuple[EdgeCard, ...] = ()
    devices: tuple[DeviceCard, ...] = ()
    reach: tuple[Reach, ...] = ()
    rounds: tuple[RoundCard, ...] = ()
    last: Timeline | None = None
    running: Timeline | None = None
    alarms: tuple[Alarm, ...] = ()
    pending: tuple[Waiting, ...] = ()
    coordinator: str = ""
    """Id of the coordinator that answers; another one may take its address."""


_HEAD = ("epoch", "version", "at_ms")


def change(old: Field, new: Field) -> dict[str, object]:
    """Return what makes `new` of `old`: the fields that differ, whole; static/page.js takes it."""
    return {
        name: value
        for name in Field.__struct_fields__
        if name not in _HEAD and (value := getattr(new, name)) != getattr(old, name)
    }


class Context(Struct, frozen=True, kw_only=True):
    """What a device told of itself at one edge, as the newest round saw it."""

    edge: str
    features: Mapping[str, float | None]
    score: float | None = None
    bound: str = ""


class DeviceDetail(Struct, frozen=True, kw_only=True):
    """One device, its trust included, with its context and its newest orders, newest first."""

    card: DeviceCard
    round: int
    contexts: tuple[Context, ...] = ()
    orders: tuple[OrderRow, ...] = ()


class Token(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What opens a session of the page."""

    token: str


class Accept(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The code that a waiting device shows; it must be the one that it shows now."""

    code: str


class Done(Struct, frozen=True, kw_only=True):
    """It was done; `may_change` says whether this viewer may."""

    may_change: bool = False


class Problem(Struct, frozen=True, kw_only=True):
    """Why a request got no answer, and what to do about it."""

    error: str
    hint: str = ""
