"""Terms of a device, signed by itself: what it asks for, whether it trains, and since when.

Edges hand them on to the coordinator. Where several name one device its own word decides, so
that none of them can end or reprice its work at the others. Pure.
"""

from collections.abc import Callable

from msgspec.msgpack import Encoder

from .messages import ContextReport, Id
from .signatures import is_claim

_SIGNED = b"fedagent/terms/1\x00"
_encoder = Encoder()


def sign_terms(
    report: ContextReport, *, edge: Id, agent: Id, public: bytes, sign: Callable[[bytes], bytes]
) -> bytes:
    """Return the `claim` of a report to an edge: key and signature."""
    terms = (report.seq, report.price, report.available)
    return public + sign(_terms(edge, agent, *terms))


def are_signed(claim: bytes, *, edge: Id, agent: Id, seq: int, price: int, available: bool) -> bool:
    """Return whether the agent signed these terms, for this edge; it did not by an empty claim."""
    return is_claim(claim, agent, _terms(edge, agent, seq, price, available))


def _terms(edge: Id, agent: Id, seq: int, price: int, available: bool) -> bytes:
    return _SIGNED + _encoder.encode((edge, agent, seq, price, available))
