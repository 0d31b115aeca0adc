"""Errors of envelopes between agents.

::

    SealError               base; `reason` is the word of the counters
    ├── CardError           a card is not signed by the identity that it names
    ├── OldCardError        the card is of an earlier start than the one known
    ├── TwinError           two keys for one start: a copied data directory
    ├── CrowdedError        more neighbours in one start than keys are kept of
    ├── StrangerError       the agent is not among the neighbours
    ├── NoCardError         no card of this neighbour yet: send it ours, it answers
    ├── EpochError          the packet is for an earlier start of one of the two
    ├── PacketError         the bytes are no packet
    ├── ForgedError         changed under way, or from somebody else
    ├── ReplayError         was opened before, or is too old to tell
    └── TooLongError        an envelope does not fit a packet, or a key is used up
"""

from typing import ClassVar

from .errors import AgentError


class SealError(AgentError):
    """Base of what can be wrong with a card, a packet or its use."""

    reason: ClassVar[str] = "seal"
    text: ClassVar[str] = "the envelope could not be sealed or opened"

    def __init__(self, peer: str, detail: str = "") -> None:
        super().__init__(peer, detail)
        self.peer = peer
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.peer[:12]}: {self.detail or self.text}"


class CardError(SealError):
    """Raised when a card's signature or key is not good."""

    reason = "card"
    text = "its card is not signed by it; ask for the card again"


class OldCardError(SealError):
    """Raised when a card is of an earlier start than the one that is known."""

    reason = "old_card"
    text = "a card of an earlier start; the newer one stays"


class TwinError(SealError):
    """Raised when one start of an agent shows two keys."""

    reason = "twin"
    text = "two keys in one start: give each device a data directory of its own"


class CrowdedError(SealError):
    """Raised when there were more neighbours in one start than keys are kept of."""

    reason = "crowded"
    text = "too many neighbours since the start; start the agent again"


class StrangerError(SealError):
    """Raised when an agent is not one of the neighbours."""

    reason = "stranger"
    text = "not a neighbour; declare it on both devices"


class NoCardError(SealError):
    """Raised when the neighbour's card is not known yet."""

    reason = "no_card"
    text = "its card is not known yet; exchange cards first"


class EpochError(SealError):
    """Raised when a packet was sealed for another start of one of the two."""

    reason = "epoch"
    text = "sealed for another start; exchange cards again"


class PacketError(SealError):
    """Raised when bytes are not a packet."""

    reason = "packet"
    text = "not a packet of this version"


class ForgedError(SealError):
    """Raised when a packet was changed, or comes from somebody else."""

    reason = "forged"
    text = "changed under way or not from it; dropped"


class ReplayError(SealError):
    """Raised when a packet was opened before, or is older than the window."""

    reason = "replay"
    text = "came before; dropped"


class TooLongError(SealError):
    """Raised when an envelope does not fit, or a key has been used too often."""

    reason = "too_long"
    text = "longer than a packet; say less at once"
