"""Envelopes between agents that only the two of them can read (docs/democratized.md, Seals).

Two agents with each other's cards share X25519 -> HKDF-SHA256 (salt: hash of both cards, info:
sender and receiver) -> one ChaCha20-Poly1305 key per direction, so that a packet sent back to its
sender does not open. The plaintext is its length in 4 bytes, the envelope, and zeros up to a
multiple of 256 bytes. HPKE's base mode names no sender and costs an agreement for each envelope;
NaCl's box is one more dependency, and has no window against replays either.
"""

import hashlib
import struct
from dataclasses import dataclass, field
from enum import StrEnum, auto

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedagent_node.data_dir import Identity
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.peers import MAX_PACKET_BYTES, PeerCard
from fedagent_protocol.signed import identity_of

BLOCK = 256
WINDOW = 1024
MAX_SESSIONS = 512
"""Neighbours in one start. Keys outlast the neighbourhood: a counter must not begin again."""
_VERSION = 2
_HEADER = struct.Struct(">BQQQ")
_LENGTH = struct.Struct(">I")
_TAG = 16
_OVERHEAD = _HEADER.size + _LENGTH.size + _TAG
MAX_ENVELOPE_BYTES = MAX_PACKET_BYTES - _OVERHEAD
_MAX_COUNTER = 2**48
_CARD = b"fedagent peer card 1\x00"
_KEYS = b"fedagent peer keys 1\x00"


class Refusal(StrEnum):
    """Why a card or a packet is not used: the word of the counters (docs/democratized.md)."""

    CARD = auto()  # not signed by the neighbour
    OLD_CARD = auto()  # of an earlier start
    TWIN = auto()  # two keys in one start
    CROWDED = auto()  # more neighbours since the start than there are keys for
    STRANGER = auto()
    NO_CARD = auto()
    EPOCH = auto()  # sealed for another start
    PACKET = auto()  # none of this version
    FORGED = auto()
    REPLAY = auto()  # received before, or too old to check
    TOO_LONG = auto()
    USED_UP = auto()  # the counter of its key


def refused(refusal: Refusal) -> ProtocolError:
    """Return the error for a card or a packet that is not used."""
    return ProtocolError(refusal, f"peer_{refusal}")


@dataclass(slots=True)
class _Session:
    """What is shared with one neighbour in one pair of epochs."""

    card: PeerCard
    outward: ChaCha20Poly1305
    inward: ChaCha20Poly1305
    sent: int = 0  # largest counter used
    newest: int = 0  # largest counter opened
    seen: int = 0  # bit n: counter `newest - n` was opened

    def take(self, counter: int) -> bool:
        """Note an authentic counter; False if it was opened before, or is too old to tell."""
        ahead = counter - self.newest
        if ahead > 0:
            # Beyond the window nothing of the old bits is left: shift no further.
            self.seen = (self.seen << min(ahead, WINDOW) | 1) & ((1 << WINDOW) - 1)
            self.newest = counter
            return True
        if counter < 1 or -ahead >= WINDOW or self.seen >> -ahead & 1:
            return False
        self.seen |= 1 << -ahead
        return True


@dataclass(slots=True)
class PeerSeal:
    """This agent's keys towards its neighbours, in one start; `epoch` numbers it, and must grow.

    Cards and packets are taken from `neighbours` and no others. For those who are `reserved` there
    are always keys, however many others an edge has named.
    """

    identity: Identity
    epoch: int
    neighbours: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()
    card: PeerCard = field(init=False)  # this agent's, for everyone
    _private: X25519PrivateKey = field(
        default_factory=X25519PrivateKey.generate, init=False, repr=False
    )
    _sessions: dict[str, _Session] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        agreement = self._private.public_key().public_bytes_raw()
        self.card = PeerCard(
            identity=self.identity.public_bytes,
            agreement=agreement,
            epoch=self.epoch,
            signature=self.identity.sign(_signed(agreement, self.epoch)),
        )

    def epoch_of(self, peer: str) -> int:
        """Return the start that the known card of `peer` is of; 0 without one."""
        session = self._sessions.get(peer)
        return session.card.epoch if session is not None else 0

    def meet(self, card: PeerCard) -> str:
        """Take a neighbour's card, once; return its id. `ProtocolError`: it is not used."""
        peer = identity_of(card.identity)
        if peer not in self.neighbours:
            raise refused(Refusal.STRANGER)
        known = self._sessions.get(peer)
        if known is not None and known.card == card:
            return peer
        _verify(card)
        if known is not None and card.epoch < known.card.epoch:
            raise refused(Refusal.OLD_CARD)
        if known is not None and card.epoch == known.card.epoch:
            if card.agreement == known.card.agreement:
                return peer
            raise refused(Refusal.TWIN)
        if known is None and peer not in self.reserved:
            others = len(self._sessions.keys() - self.reserved)
            if others >= MAX_SESSIONS:
                raise refused(Refusal.CROWDED)
        self._sessions[peer] = self._agree(peer, card)
        return peer

    def seal(self, peer: str, plain: bytes) -> bytes:
        """Return the packet for `peer`, n * 256 bytes; `ProtocolError`: no key, or too long."""
        session = self._session(peer)
        if len(plain) > MAX_ENVELOPE_BYTES:
            raise refused(Refusal.TOO_LONG)
        if session.sent >= _MAX_COUNTER:
            raise refused(Refusal.USED_UP)
        session.sent += 1
        header = _HEADER.pack(_VERSION, self.epoch, session.card.epoch, session.sent)
        padded = (_LENGTH.pack(len(plain)) + plain).ljust(
            sealed_bytes(len(plain)) - _HEADER.size - _TAG, b"\0"
        )
        more = header + _pair(self.identity.id, peer)
        return header + session.outward.encrypt(_nonce(session.sent), padded, more)

    def open(self, peer: str, packet: bytes) -> bytes:
        """Return the envelope in a packet from `peer`; `ProtocolError`: none may be used."""
        session = self._session(peer)
        if not _OVERHEAD <= len(packet) <= MAX_PACKET_BYTES or len(packet) % BLOCK:
            raise refused(Refusal.PACKET)
        header = packet[: _HEADER.size]
        version, theirs, ours, counter = _HEADER.unpack(header)
        if version != _VERSION:
            raise refused(Refusal.PACKET)
        if (theirs, ours) != (session.card.epoch, self.epoch):
            raise refused(Refusal.EPOCH)
        more = header + _pair(peer, self.identity.id)
        try:
            plain = session.inward.decrypt(_nonce(counter), packet[_HEADER.size :], more)
        except InvalidTag as error:
            raise refused(Refusal.FORGED) from error
        # Only what is authentic may move the window.
        if not session.take(counter):
            raise refused(Refusal.REPLAY)
        (length,) = _LENGTH.unpack_from(plain)
        if length > len(plain) - _LENGTH.size:
            raise refused(Refusal.PACKET)
        return plain[_LENGTH.size : _LENGTH.size + length]

    def _session(self, peer: str) -> _Session:
        if peer not in self.neighbours:
            raise refused(Refusal.STRANGER)
        session = self._sessions.get(peer)
        if session is None:
            raise refused(Refusal.NO_CARD)
        return session

    def _agree(self, peer: str, card: PeerCard) -> _Session:
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(card.agreement))
        except ValueError as error:  # a point of low order: the secret would be known to all
            raise refused(Refusal.CARD) from error
        salt = hashlib.sha256(b"".join(sorted(map(_bytes_of, (self.card, card))))).digest()
        outward = _derive(secret, salt, _pair(self.identity.id, peer))
        inward = _derive(secret, salt, _pair(peer, self.identity.id))
        return _Session(card, ChaCha20Poly1305(outward), ChaCha20Poly1305(inward))


def sealed_bytes(envelope_bytes: int) -> int:
    """Return how long the packet of an envelope is."""
    return -(-(envelope_bytes + _OVERHEAD) // BLOCK) * BLOCK


def _verify(card: PeerCard) -> None:
    try:
        key = Ed25519PublicKey.from_public_bytes(card.identity)
        key.verify(card.signature, _signed(card.agreement, card.epoch))
    except (InvalidSignature, ValueError) as error:
        raise refused(Refusal.CARD) from error


def _derive(secret: bytes, salt: bytes, pair: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=_KEYS + pair).derive(secret)


def _signed(agreement: bytes, epoch: int) -> bytes:
    return _CARD + epoch.to_bytes(8) + agreement


def _bytes_of(card: PeerCard) -> bytes:
    return card.identity + card.agreement + card.epoch.to_bytes(8)


def _pair(sender: str, receiver: str) -> bytes:
    """Return both ids; neither can hold the separator."""
    return f"{sender}>{receiver}".encode()


def _nonce(counter: int) -> bytes:
    return counter.to_bytes(12)
