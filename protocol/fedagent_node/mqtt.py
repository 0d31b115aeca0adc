"""MQTT 3.1.1 as both ends of ours speak it: packets from and to bytes. Pure.

Sessions are clean, a message is sent at QoS 0 or 1 and never retained, and no packet of another
form is taken (OASIS MQTT 3.1.1, sections 2 and 3).
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

MAX_PACKET_BYTES = 1 << 20
"""Larger packets end the connection that they come on."""
MAX_ID = 65_535
REFUSED = 0x80
"""In a SUBACK: no such subscription."""
_PROTOCOL = b"\x00\x04MQTT\x04"


class Kind(IntEnum):
    """What a packet is: the upper half of its first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


REFUSALS = (
    "accepted",
    "it speaks another version of MQTT",
    "it does not take the name of the session",
    "it is not available",
    "bad user name or password",
    "not authorized",
)
"""What the code in a CONNACK says."""


class MqttError(ValueError):
    """Raised for bytes that are no packet of ours; the connection cannot go on."""


class Packet(NamedTuple):
    """One packet; `number` is its id, 0 for none, or the code of a CONNACK."""

    kind: Kind
    number: int = 0
    topic: str = ""  # of a PUBLISH
    payload: bytes = b""  # of a PUBLISH; of a SUBACK its codes
    filters: tuple[str, ...] = ()  # of a SUBSCRIBE or an UNSUBSCRIBE
    retain: bool = False


class Connect(NamedTuple):
    """What opens a session."""

    client_id: str
    keep_alive_s: int
    will: tuple[str, bytes] | None = None
    user: str = ""
    password: str | None = None

    def packed(self) -> bytes:
        """Return the packet."""
        flags, fields = 2, [_text(self.client_id)]
        if self.will is not None:
            flags |= 4
            fields += [_text(self.will[0]), _data(self.will[1])]
        if self.user:
            flags |= 0x80
            fields.append(_text(self.user))
        if self.user and self.password is not None:
            flags |= 0x40
            fields.append(_text(self.password))
        head = _PROTOCOL + bytes([flags]) + self.keep_alive_s.to_bytes(2)
        return _framed(Kind.CONNECT << 4, head, *fields)

    @classmethod
    def read(cls, body: memoryview) -> "Connect":
        """Return what a CONNECT says; who it says that it is decides nothing."""
        if body[: len(_PROTOCOL)] != _PROTOCOL:
            raise MqttError("another version of MQTT")
        flags, keep_alive_s = body[7], int.from_bytes(body[8:10])
        client_id, at = _string(body, 10)
        if not flags & 4:
            return cls(client_id, keep_alive_s)
        topic, at = _string(body, at)
        size = int.from_bytes(body[at : at + 2])
        will = bytes(body[at + 2 : at + 2 + size])
        # A will that is to be retained is not kept, as no message is.
        return cls(client_id, keep_alive_s, None if flags & 0x20 else (topic, will))


def publish(topic: str, payload: bytes, number: int = 0) -> bytes:
    """Return a message: at QoS 1 with a number, else at QoS 0."""
    if number:
        return _framed(Kind.PUBLISH << 4 | 2, _text(topic), number.to_bytes(2), payload)
    return _framed(Kind.PUBLISH << 4, _text(topic), payload)


def subscribe(number: int, *filters: str) -> bytes:
    """Return the wish for the messages of filters, at QoS 1."""
    wanted = (_text(each) + b"\1" for each in filters)
    return _framed(Kind.SUBSCRIBE << 4 | 2, number.to_bytes(2), *wanted)


def unsubscribe(number: int, *filters: str) -> bytes:
    """Return the wish for them no more."""
    return _framed(Kind.UNSUBSCRIBE << 4 | 2, number.to_bytes(2), *map(_text, filters))


def answer(kind: Kind, number: int, codes: bytes = b"") -> bytes:
    """Return a PUBACK, SUBACK, UNSUBACK, or, of no session before, a CONNACK with a code."""
    return _framed(kind << 4, number.to_bytes(2), codes)


def bare(kind: Kind) -> bytes:
    """Return a packet that has nothing in it."""
    return bytes((kind << 4, 0))


class Packets:
    """Reads packets from a stream that comes in any pieces."""

    def __init__(self, limit: int = MAX_PACKET_BYTES) -> None:
        self._limit = limit
        self._data = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[Packet | Connect]:
        """Yield the packets that are whole now.

        Raises:
            MqttError: What follows is no packet of ours, or too large.
        """
        self._data += data
        at, view = 0, memoryview(self._data)
        try:
            while (found := _head(view, at)) is not None:
                start, size = found
                if size > self._limit:
                    raise MqttError(f"a packet of {size} bytes, the limit is {self._limit}")
                if len(view) - start < size:
                    break
                first, at = view[at], start + size
                yield _read(first, view[start:at])
        except (IndexError, UnicodeDecodeError) as error:
            raise MqttError("a packet is cut off") from error
        view.release()
        del self._data[:at]


def _head(data: memoryview, at: int) -> tuple[int, int] | None:
    """Return where the body of a packet begins and its size; None while that is not there."""
    size = shift = 0
    for place in range(at + 1, min(at + 5, len(data))):
        size |= (data[place] & 0x7F) << shift
        if data[place] < 0x80:
            return place + 1, size
        shift += 7
    if shift == 28:
        raise MqttError("the length of a packet has no end")
    return None


def _read(first: int, body: memoryview) -> Packet | Connect:
    try:
        kind = Kind(first >> 4)
    except ValueError as error:
        raise MqttError(f"a packet of kind {first >> 4}") from error
    if kind is Kind.PUBLISH:
        topic, at = _string(body, 0)
        if first & 4 or "\0" in topic:
            raise MqttError("a message at QoS 2, or of a topic that is none")
        number = 0
        if first & 2:
            number, at = int.from_bytes(body[at : at + 2]), at + 2
        return Packet(kind, number, topic, bytes(body[at:]), retain=bool(first & 1))
    if kind is Kind.CONNECT:
        return Connect.read(body)
    if kind in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE):
        filters, at = [], 2
        while at < len(body):
            each, at = _string(body, at)
            filters.append(each)
            at += kind is Kind.SUBSCRIBE
        return Packet(kind, int.from_bytes(body[:2]), filters=tuple(filters))
    return Packet(kind, int.from_bytes(body[:2]), payload=bytes(body[2:]))


def _string(body: memoryview, at: int) -> tuple[str, int]:
    size = int.from_bytes(body[at : at + 2])
    end = at + 2 + size
    if end > len(body):
        raise IndexError
    return str(body[at + 2 : end], "utf-8"), end


def _text(text: str) -> bytes:
    return _data(text.encode())


def _data(data: bytes) -> bytes:
    return len(data).to_bytes(2) + data


def _framed(first: int, *parts: bytes) -> bytes:
    size = sum(map(len, parts))
    head = bytearray((first,))
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return b"".join((head, *parts))
