"""How neighbours talk, how long, and how much: every bound of democratized analytics."""

import math
from dataclasses import dataclass, field

from fedagent_agent.errors import AgentError
from fedagent_protocol.peers import MAX_BEST

PAPER_C = 1e-3
MAX_NOTES = 2**16 - 1
"""So that numbers of contents fit four bytes for the first 65 535 starts of an agent."""


class PeerSettingError(AgentError):
    """Raised when a bound or constant of the exchange between neighbours cannot be used."""

    def __init__(self, setting: str, value: float, hint: str) -> None:
        super().__init__(setting, value, hint)
        self.setting = setting
        self.value = value
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.setting} is {self.value}: {self.hint}"


@dataclass(frozen=True, slots=True)
class Pace:
    """How notes to one neighbour are spaced and bounded within a slot.

    Attributes:
        gap_s: Least time between two new contents, more where answers are slow; 0: none at all.
        hold_s: How long new content waits for more, unless a note goes anyway; in gossip
            one of two neighbours waits half as long.
        ack_s: How long an acknowledgement may wait for a note to ride with.
        repeat_s: First wait for an acknowledgement; half as long again at each repeat.
        longest_s: Longest such wait, and the rhythm in which a silent neighbour is asked.
        silence_s: A neighbour that owes an answer for so long is left out until it speaks.
        life_s: Nothing is said about a slot for longer than this.
        max_notes: Notes to one neighbour in one slot, repeats and acknowledgements counted.
    """

    gap_s: float = 0.03
    hold_s: float = 0.0
    ack_s: float = 0.07
    repeat_s: float = 0.2
    longest_s: float = 1.0
    silence_s: float = 2.0
    life_s: float = 30.0
    max_notes: int = 128

    def __post_init__(self) -> None:
        """Refuse what would never end or never begin."""
        for name in ("repeat_s", "longest_s", "silence_s", "life_s"):
            _positive(name, getattr(self, name))
        for name in ("gap_s", "hold_s", "ack_s"):
            _at_least(name, getattr(self, name), 0)
        _at_least("max_notes", self.max_notes, 1)
        if self.max_notes > MAX_NOTES:
            raise PeerSettingError("max_notes", self.max_notes, f"must be <= {MAX_NOTES}")


@dataclass(frozen=True, slots=True)
class BeliefSettings:
    """Bounds of belief propagation in a slot.

    Attributes:
        tolerance: Largest change of a log ratio that is not told. Beliefs are then at
            most 2.5 x tolerance x degree away from the fixed point: each untold change
            grows to at most tolerance / (1 - 0.9) per message, and the logistic function
            has slope 1/4 at most.
        max_sweeps: Contents to one neighbour in one slot.
        quiet_s: How long nothing may change before beliefs count as done.
        max_s: After this they count as done anyway.
        literal: Exchange eq. (4)-(7) of GDA as printed, for comparison only.
        pace: Of notes.
    """

    tolerance: float = 3e-3
    max_sweeps: int = 50
    quiet_s: float = 0.1
    max_s: float = 3.0
    literal: bool = False
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        """Refuse what would never end."""
        _positive("tolerance", self.tolerance)
        _positive("max_s", self.max_s)
        _at_least("quiet_s", self.quiet_s, 0)
        _at_least("max_sweeps", self.max_sweeps, 1)


@dataclass(frozen=True, slots=True)
class GossipSettings:
    """Bounds of gossip in a slot.

    Attributes:
        keep: K, how many train.
        quiet_s: How long nothing may change before the K best count as agreed.
        max_s: After this, counted from naming one's own index, they count as agreed anyway.
        pace: Of notes.
    """

    keep: int = 5
    quiet_s: float = 0.05
    max_s: float = 3.0
    pace: Pace = field(
        default_factory=lambda: Pace(gap_s=0.06, hold_s=0.08, ack_s=0.12, repeat_s=0.4)
    )

    def __post_init__(self) -> None:
        """Refuse what would never end or does not fit a note."""
        _at_least("keep", self.keep, 1)
        if self.keep > MAX_BEST:
            raise PeerSettingError("keep", self.keep, f"must be <= {MAX_BEST}")
        _positive("max_s", self.max_s)
        _at_least("quiet_s", self.quiet_s, 0)


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise PeerSettingError(name, value, "must be finite and > 0")


def _at_least(name: str, value: float, least: float) -> None:
    if not (math.isfinite(value) and value >= least):
        raise PeerSettingError(name, value, f"must be finite and >= {least}")
