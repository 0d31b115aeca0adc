"""The envelope of every message: who wrote it, to which topic, and that it comes once.

::

    0xC1 | 1 | flags | public key 32 | number 8 | signature 64 | [length 2, certificate] | body

The signature covers topic, number and SHA-256 of the body. An id is the hash of its key, so
that a topic that names its sender needs no directory of keys. docs/protocol.md, Envelope.
"""

import hashlib
import math
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fedagent_protocol import topics
from fedagent_protocol.codec import MAX_PAYLOAD_BYTES, Direction
from fedagent_protocol.errors import ProtocolError, too_large
from fedagent_protocol.signed import ID_LENGTH, identity_of, verify
from fedagent_protocol.topics import Topic

from .data_dir import Identity
from .effects import CLONED
from .site.certificates import Certificate

MARK = 0xC1
"""Begins no MessagePack value, so that what is not signed is told from what is."""
VERSION = 1
STARTS_BITS = 32
"""A number is that of the start * 2^32 + n, so that it grows over restarts."""
WINDOW = 1024
MAX_SENDERS = 20_000
MAX_CERTIFICATE_BYTES = 4096
MAX_STARTS = 2**31
"""No process was started so often."""
MAX_STEP = 2**16
"""How far hearsay moves an own number at once: one lie must leave enough of them."""
MAX_JUMPS = 8
"""How often in one process."""
RECHECK_S = 30.0
"""How long a certificate is believed before it is read again, for its end and revocation."""
HEARD_AGAIN_S = 1.0
LIVES = 3
"""So often an earlier process speaks anew, a second apart, until it is sure that there are two."""
HEARD = "heard"
"""Kind of the answer to who is behind: the number its receiver had from it."""
GONE = "gone"
"""Kind of what a broker says of an agent: a hint."""
BARE = frozenset({"peer-deliver", GONE})
"""Sealed between two neighbours already, or no sender's word: the broker's list says who writes."""
CERTIFIED = frozenset(
    {
        *("hello", "welcome", "edge-hello", "edge-welcome", "edge-beacon", "coordinator-beacon"),
        *("context", "edge-status", HEARD),
    }
)
"""Carry the sender's certificate where the link asks for certificates: greetings, and heartbeats,
because a session may outlive a certificate."""
_WITH_CERTIFICATE = 1
_HEADER = struct.Struct(">BBB32sQ64s")
_LENGTH = struct.Struct(">H")
_HEARD = struct.Struct(f">Q?{ID_LENGTH}s")
"""A number, whether two processes have the identity, and whose it is."""
_SIGNED = b"fedagent/envelope/1\x00"
_SENDERS = {
    Direction.AGENT_TO_EDGE: "agent",
    Direction.EDGE_TO_AGENT: "edge",
    Direction.EDGE_TO_COORDINATOR: "edge",
    Direction.COORDINATOR_TO_EDGE: "coordinator",
}
"""Roles of senders, which are also the fields of a topic that name them."""


class Refusal(StrEnum):
    """Why a message is not taken; counted as ``refused_<word>``."""

    UNSIGNED = "unsigned"
    BAD_SIGNATURE = "bad_signature"
    OTHER_KEY = "other_key"  # the key is not that of who the topic says it comes from
    REPLAYED = "replayed"
    NO_CERTIFICATE = "no_certificate"
    WRONG_ROLE = "wrong_role"
    REVOKED = "revoked"
    EXPIRED = "expired"
    CLONED = "cloned"


MEANINGS = {
    Refusal.UNSIGNED: "the sender runs another version: install the same on both; or another "
    "program writes to this broker",
    Refusal.BAD_SIGNATURE: "the message was altered in transit or forged",
    Refusal.OTHER_KEY: "another client writes in its name",
    Refusal.REPLAYED: "the message was sent before, or the sender's data directory was restored "
    "from a backup",
    Refusal.NO_CERTIFICATE: "enrol it: `fedagent devices invite NAME`",
    Refusal.WRONG_ROLE: "its certificate is for another role",
    Refusal.REVOKED: "its certificate was revoked: `fedagent devices`",
    Refusal.EXPIRED: "its certificate has expired: let it join again",
    Refusal.CLONED: CLONED,
}


class EnvelopeError(ProtocolError):
    """Raised when a message is not what its topic and key make it; `detail`: why."""

    template = "{detail}: {meaning}"

    detail: Refusal
    reason: str = "envelope"

    @property
    def meaning(self) -> str:
        """What it most likely means."""
        return MEANINGS[self.detail]


@dataclass(frozen=True, slots=True)
class Opened:
    """A message whose sender is certain; `proof` is its envelope without the body."""

    sender: str
    body: bytes | memoryview
    proof: bytes


class Certifier(Protocol):
    """A site's certificates, as far as links are concerned."""

    def asked(self, link: str) -> bool:
        """Whether a link is of those whose peers have certificates of the site."""

    def own(self) -> bytes:
        """Return this process's certificate."""

    def read(self, der: bytes) -> Certificate:
        """Return a certificate that is valid now; `EnvelopeError` with the reason if it is not."""


def _parts(payload: bytes) -> tuple[bytes, int, bytes, bytes, memoryview]:
    start, length = _HEADER.size, 0
    try:
        mark, version, flags, public, number, signature = _HEADER.unpack_from(payload)
        if flags & _WITH_CERTIFICATE:
            (length,) = _LENGTH.unpack_from(payload, start)
            start += _LENGTH.size
    except struct.error as error:
        raise EnvelopeError(Refusal.UNSIGNED) from error
    end = start + length
    if (mark, version) != (MARK, VERSION) or length > MAX_CERTIFICATE_BYTES or end > len(payload):
        raise EnvelopeError(Refusal.UNSIGNED)
    return public, number, signature, payload[start:end], memoryview(payload)[end:]


def _signed(topic: str, number: int, hashed: bytes) -> bytes:
    """Return what the signature of an envelope covers, by the SHA-256 of the body."""
    return _SIGNED + topic.encode() + number.to_bytes(8) + hashed


class _Sender:
    """What is known of one key: the numbers had from it, and its certificate.

    Each number is taken once, and none that is older than `WINDOW`. `former` is the newest of all
    processes before the one that began last: what is newer, and comes later, was not repeated by
    anybody but made by another process that lives too; `lives` counts that.
    """

    __slots__ = ("answered_at", "certificate", "former", "lives", "newest", "read_at", "seen")

    def __init__(self) -> None:
        self.newest = self.seen = self.former = self.lives = 0
        self.answered_at = self.read_at = -math.inf
        self.certificate: Certificate | None = None

    def take(self, number: int) -> bool:
        """Note a number; False if it was had, or is too old to tell."""
        ahead = number - self.newest
        if ahead > 0:
            if number >> STARTS_BITS > self.newest >> STARTS_BITS:
                self.former = self.newest
            self.seen = (self.seen << ahead | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
            self.newest = number
            return True
        if -ahead >= WINDOW or self.seen >> -ahead & 1:
            return False
        self.seen |= 1 << -ahead
        return True


class Gate:
    """Seals what one process sends, and opens what comes to it.

    Args:
        starts: The number of this start of the identity.
        keep_starts: Keeps a larger one durably.
        publish: Takes link, topic and payload of an answer to who is behind.
        log: Takes a line about this process's own number.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        starts: int,
        clock: Callable[[], float],
        keep_starts: Callable[[int], None] = lambda _: None,
        publish: Callable[[str, str, bytes], object] = lambda *_: None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._identity = identity
        self._number = starts << STARTS_BITS
        self._clock = clock
        self._keep_starts = keep_starts
        self._publish = publish
        self._log = log
        self._jumps = 0
        self._cloned = False
        self._senders: OrderedDict[str, _Sender] = OrderedDict()
        self.certifier: Certifier | None = None
        """The site's certificates, where there are some."""

    # ---------------------------------------------------------------------- out

    def seal(
        self, topic: str, body: bytes, *, link: str = "", kind: str = "", hashed: bytes = b""
    ) -> bytes:
        """Return the payload of a message, the SHA-256 of whose body may be known."""
        if kind in BARE:
            return body
        self._number += 1
        number, identity = self._number, self._identity
        signature = identity.sign(_signed(topic, number, hashed or hashlib.sha256(body).digest()))
        certifier, extra, flags = self.certifier, b"", 0
        if kind in CERTIFIED and certifier is not None and certifier.asked(link):
            der = certifier.own()
            extra, flags = _LENGTH.pack(len(der)) + der, _WITH_CERTIFICATE
        header = _HEADER.pack(MARK, VERSION, flags, identity.public_bytes, number, signature)
        return b"".join((header, extra, body))

    # ----------------------------------------------------------------------- in

    def open(self, topic: str, where: Topic, payload: bytes, link: str = "") -> Opened | None:
        """Return a message whose sender is who its topic says; None of what is for the gate alone.

        Raises:
            EnvelopeError: It is refused.
            ProtocolError: It is over the limit; nothing was looked at.
        """
        if len(payload) > (limit := MAX_PAYLOAD_BYTES + MAX_CERTIFICATE_BYTES + _HEADER.size):
            raise too_large("payload", len(payload), limit)
        named = named_sender(where)
        if where.kind in BARE:
            return Opened(named, payload, b"")
        public, number, signature, der, body = _parts(payload)
        sender = identity_of(public)
        if named not in ("", sender):
            raise EnvelopeError(Refusal.OTHER_KEY)
        if not verify(public, signature, _signed(topic, number, hashlib.sha256(body).digest())):
            raise EnvelopeError(Refusal.BAD_SIGNATURE)
        known = self._senders.setdefault(sender, _Sender())
        self._senders.move_to_end(sender)
        if len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)
        if self.certifier is not None and self.certifier.asked(link):
            self._check_certificate(self.certifier, known, public, der, _SENDERS[where.direction])
        if number >> STARTS_BITS > MAX_STARTS or not known.take(number):
            lives = known.former < number < known.newest >> STARTS_BITS << STARTS_BITS
            if number >> STARTS_BITS <= known.newest >> STARTS_BITS:
                self._tell(known, sender, where, link, lives=lives)
            known.former = max(known.former, number) if lives else known.former
            cloned = lives and known.lives >= LIVES
            raise EnvelopeError(Refusal.CLONED if cloned else Refusal.REPLAYED)
        if where.kind == HEARD:
            self._heard(sender, body)
            return None
        return Opened(sender, body, payload[: len(payload) - len(body)])

    def _check_certificate(
        self, certifier: Certifier, known: _Sender, public: bytes, der: bytes, role: str
    ) -> None:
        held = known.certificate
        if not der and held is None:
            raise EnvelopeError(Refusal.NO_CERTIFICATE)
        is_new = held is None or (der and der != held.der)
        if held is None or is_new or self._clock() - known.read_at >= RECHECK_S:
            held = certifier.read(der or (held.der if held is not None else b""))
            if held.public != public:
                raise EnvelopeError(Refusal.NO_CERTIFICATE)
            known.certificate, known.read_at = held, self._clock()
        if held.role != role:
            raise EnvelopeError(Refusal.WRONG_ROLE)

    def recheck(self) -> None:
        """Read every certificate again when its owner next speaks: some may be revoked."""
        for known in self._senders.values():
            known.read_at = -math.inf

    # ------------------------------------------------------------------- numbers

    def _tell(self, known: _Sender, sender: str, where: Topic, link: str, *, lives: bool) -> None:
        """Tell who is behind of its own newest number: it may come from a backup."""
        now = self._clock()
        if now - known.answered_at < HEARD_AGAIN_S:
            return
        known.answered_at = now
        known.lives += lives
        topic = _answer_topic(where, self._identity.id)
        body = _HEARD.pack(known.newest, lives and known.lives >= LIVES, sender.encode())
        self._publish(link, topic, self.seal(topic, body, link=link, kind=HEARD))

    def _heard(self, peer: str, body: bytes | memoryview) -> None:
        """Jump ahead of a number that a peer had under this identity, by a bounded step."""
        if len(body) != _HEARD.size:
            return
        number, cloned, me = _HEARD.unpack(body)
        starts = number >> STARTS_BITS
        if me != self._identity.id.encode():
            return
        if cloned and not self._cloned:
            self._cloned = True
            self._log(f"{peer} hears this identity twice: {CLONED}")
        if number <= self._number or starts >= MAX_STARTS or self._jumps >= MAX_JUMPS:
            return
        self._jumps += 1
        ahead = min(starts, (self._number >> STARTS_BITS) + MAX_STEP) + 1
        self._keep_starts(ahead)
        self._number = ahead << STARTS_BITS
        if not self._cloned:
            self._log(
                f"{peer} has heard this identity in a later start: its data directory was restored "
                "from a backup, or another process has a copy of it; continuing after that number"
            )


def named_sender(where: Topic) -> str:
    """Return who a topic says it comes from; empty of a coordinator that writes to one edge."""
    named: str = getattr(where, _SENDERS[where.direction])
    return named


def _answer_topic(where: Topic, me: str) -> str:
    match where.direction:
        case Direction.AGENT_TO_EDGE:
            return topics.agent_down(where.site, where.agent, me, HEARD)
        case Direction.EDGE_TO_AGENT:
            return topics.agent_up(where.site, me, where.edge, HEARD)
        case Direction.EDGE_TO_COORDINATOR:
            return topics.edge_down(where.site, where.edge, HEARD)
        case Direction.COORDINATOR_TO_EDGE:
            return topics.edge_up(where.site, me, HEARD)
