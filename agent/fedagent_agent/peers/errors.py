"""Why a card or a packet of a neighbour is not used."""

from enum import Enum

from fedagent_agent.errors import AgentError


class PacketRefusal(Enum):
    """Why a card or a packet is not used; the name is the word of the counters."""

    CARD = "its card is not signed by it; ask for the card again"
    OLD_CARD = "a card of an earlier start; the newer one is kept"
    TWIN = "two keys in one start: give each device a data directory of its own"
    CROWDED = "too many neighbours since the start; start the agent again"
    STRANGER = "not a neighbour; declare it on both devices"
    NO_CARD = "its card is not known yet; exchange cards first"
    EPOCH = "sealed for another start; exchange cards again"
    PACKET = "not a packet of this version"
    FORGED = "altered in transit or not from this neighbour; dropped"
    REPLAY = "received before, or too old to check; dropped"
    TOO_LONG = "longer than a packet; use a smaller K"
    USED_UP = "its key is used up; start the agent again"


class SealError(AgentError):
    """Raised when a card or packet is not used."""

    def __init__(self, peer: str, refusal: PacketRefusal) -> None:
        super().__init__(peer, refusal)
        self.peer = peer
        self.refusal = refusal

    @property
    def reason(self) -> str:
        """The word of the counters."""
        return self.refusal.name.lower()

    def __str__(self) -> str:
        return f"{self.peer[:12]}: {self.refusal.value}"
