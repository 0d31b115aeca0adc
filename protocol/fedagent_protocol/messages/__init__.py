"""Every message on the wire, as frozen structs in one tagged union per direction.

Unknown fields are skipped, unknown words refused. docs/protocol.md has the flows.
"""

from .evaluation import *
from .fields import *
from .masking import *
from .round import *
from .session import *

AgentToEdge = (
    Hello
    | ContextReport
    | Decline
    | TaskNeed
    | Need
    | UpdateOffer
    | Chunk
    | Probe
    | ProbeReply
    | Bye
    | Opinion
    | Volunteer
    | PeerSend
    | MaskKeys
    | MaskShares
    | MaskOpening
    | RevocationsNeed
    | Gone
)
EdgeToAgent = (
    EdgeBeacon
    | Welcome
    | TrainOrder
    | TaskBody
    | Need
    | Chunk
    | Receipt
    | RoundClosed
    | Probe
    | ProbeReply
    | OpinionCall
    | Neighbours
    | PeerDeliver
    | MaskRoster
    | MaskDelivery
    | MaskAsk
    | Revocations
)
EdgeToCoordinator = (
    EdgeHello
    | EdgeStatus
    | RoundColumns
    | RoundReport
    | Need
    | Chunk
    | Opinions
    | Volunteers
    | EdgeMoments
    | Revocations
)
CoordinatorToEdge = (
    CoordinatorBeacon
    | EdgeWelcome
    | GlobalModel
    | RoundOpen
    | RoundOrder
    | ReportReceipt
    | RunEnded
    | Need
    | Chunk
    | OpinionOpen
    | OpinionClose
    | OpinionsReceipt
    | Revocations
    | RevocationsNeed
)
AnyMessage = AgentToEdge | EdgeToAgent | EdgeToCoordinator | CoordinatorToEdge


def kind(message: Message) -> str:
    """Return the message's tag, the last level of its topic."""
    tag = message.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
