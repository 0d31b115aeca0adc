"""Which updates an edge takes from those it ordered, and what it answers."""

from fedagent_node.effects import Send
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import Receipt, ReceiptStatus, UpdateOffer
from fedagent_protocol.tensors import MAX_HEADER_BYTES
from fedagent_protocol.transfer import Layout

from .masking import NOT_IN_COHORT, Masking
from .round import EdgeRound, Part

SMALLEST_CHUNK = 16 * 1024
"""Smaller chunks are taken only where the round's model has such, too."""
MOST_BYTES_MASKED = 4
"""A masked number is of 8 bytes, that of a model of 2 or more."""


def refusal(
    rnd: EdgeRound, masking: Masking | None, model: Layout, part: Part, offer: UpdateOffer
) -> tuple[str, str]:
    """Return reason and detail why an offer cannot be taken, or empty strings.

    Costs no memory: nothing of the update has been stored yet.
    """
    order = rnd.order
    if offer.task != order.task:
        return "wrong_task", offer.task[:12]
    if why := _wrong_base(rnd, part, offer):
        return "stale_base", why
    if not 0 < offer.stats.num_samples <= order.max_samples:
        return (
            "sample_count",
            f"{offer.stats.num_samples} samples, at most {order.max_samples} are allowed",
        )
    if masking is not None and not masking.has(part.agent):
        return NOT_IN_COHORT, "it is not in the cohort, so its masks cannot be removed"
    if masking is not None and (why := masking.agree(part.agent, offer.agreed)):
        return "masking_not_agreed", why
    words = 1 if masking is None else MOST_BYTES_MASKED
    if not 0 < offer.size <= words * model.size + MAX_HEADER_BYTES:
        return "oversize", f"{offer.size} bytes for a model of {model.size}"
    if offer.chunk_bytes < min(SMALLEST_CHUNK, model.chunk_bytes, offer.size):
        return "bad_chunk", f"chunks of {offer.chunk_bytes}"
    try:
        layout = Layout(offer.size, offer.chunk_bytes)
        if offer.first:
            layout.check(0, len(offer.first))
    except ProtocolError as error:
        return error.reason, str(error)
    return "", ""


def _wrong_base(rnd: EdgeRound, part: Part, offer: UpdateOffer) -> str:
    """Return why an update starts from no model that is expected; empty if it does."""
    if not offer.made_in:
        return "" if offer.base == rnd.base else offer.base[:12]
    late = part.late
    if late is not None and (late.round, late.base) == (offer.made_in, offer.base):
        return ""
    return f"no late update of round {offer.made_in} is expected"


def receipt(agent: str, offer: UpdateOffer, status: ReceiptStatus, reason: str) -> Send:
    """Return the receipt of an update."""
    message = Receipt(
        run=offer.run, round=offer.round, digest=offer.digest, status=status, reason=reason
    )
    return Send(agent, message)
