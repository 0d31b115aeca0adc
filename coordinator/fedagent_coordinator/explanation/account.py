"""What is said of one device in one round: plain values that encode as JSON."""

import math
from typing import Literal

import msgspec

from fedagent_coordinator.books.rows import OrderRow

State = Literal[
    "selected", "not_selected", "unaffordable", "unavailable", "not_visible", "unknown_device"
]
Kind = Literal[
    "none",
    "visibility",
    "availability",
    "edge_budget",
    "run_budget",
    "clients_per_round",
    "deadline",
    "trust",
    "cold_start",
    "fairness_queue",
    "slot",
    "exploration",
    "rank",
]
What = Literal["price", "rate", "compute", "budget", "run_budget", "availability"]


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One number that the policy has of a device, and of the last that it chose; None unknown."""

    name: str
    device: float | None = None
    last_chosen: float | None = None


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """What bound: money in micro-credits, else a count; `edge` is an id, empty for none."""

    kind: Kind = "none"
    edge: str = ""
    limit: float | None = None
    used: float | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The least change of one quantity alone that would have selected the device.

    Money is in micro-credits, a rate in bit/s at `edge`; `factor` is by how much all rates (or the
    compute) of the device are multiplied, 0 where it is no factor.
    """

    what: What
    before: float = msgspec.field(name="from")
    to: float
    edge: str = ""
    factor: float = 0.0


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a device was, or was not, selected in a round; for `fedagent why`, and as JSON.

    `solved` is whether the round could be solved again with what the policy knew; only then is an
    empty `nearest_change` of a device that was not selected an answer.
    """

    run: str
    round: int
    device: str
    name: str
    policy: str
    state: State
    edge: str = ""
    reasons: list[str] = []
    scores: list[Score] = []
    constraint: Constraint = Constraint()
    nearest_change: list[Change] = []
    solved: bool = False
    ordered: int = 0
    in_time: int = 0
    never_delivering: bool = False
    orders: list[OrderRow] = []  # up to this round, newest first
    propensity: float | None = None  # of being ordered at `edge`, where the run explores


def known(value: float) -> float | None:
    """Return a number that JSON has; None for another."""
    return float(value) if math.isfinite(value) else None
