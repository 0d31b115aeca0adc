"""What a role's core asks of its surroundings, and what it takes in: one vocabulary. Pure.

A core is a state machine without clock, disk or network, with three verbs:

- ``receive(event, now)`` and ``tick(now)`` return effects, which are performed in order: what
  is written is on the disk before the message that follows it goes out;
- ``next_due()`` returns when a tick is wanted, or None.

A role's own records are subclasses of `Write`, `Run` and `Input`: ``class SaveRound(Write)``.
The result of a `Write` or a `Run`, if there is one, comes back as an `Input`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedagent_protocol.messages import PROTOCOL_VERSION, AnyMessage

EVERYBODY = "*"
"""Receiver of a broadcast; no id is written like this."""


class Input:
    """Base of everything that a core takes in."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Received(Input):
    """A message.

    Attributes:
        sender: Id of the agent, edge or coordinator that the topic names; empty where it
            names none: a coordinator that writes to one edge.
        link: Name of the link that it came on.
        at: When the network had it, which a busy event loop does not delay.
        link_idle: Whether everything sent on that link before was acknowledged.
    """

    sender: str
    message: AnyMessage
    link: str
    at: float
    link_idle: bool = True


@dataclass(frozen=True, slots=True)
class OtherVersion(Input):
    """A peer of another protocol version is heard; of what it says no body is read."""

    sender: str
    version: int
    link: str


@dataclass(frozen=True, slots=True)
class LinkUp(Input):
    """A link is connected, for the first time or again."""

    link: str


@dataclass(frozen=True, slots=True)
class LinkDown(Input):
    """A link is known to be down."""

    link: str


class Effect:
    """Base of everything that a core asks for."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Send(Effect):
    """Send a message.

    Attributes:
        to: Id of the receiver, or `EVERYBODY`; empty for an edge's coordinator.
        stored: The store completes the message with bytes that it keeps, as the data of a
            chunk (`Store.complete`).
        version: Protocol version of the receiver.
    """

    to: str
    message: AnyMessage
    stored: bool = False
    version: int = PROTOCOL_VERSION


class Write(Effect):
    """Base of what a role's store does at once, on the disk."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Mark(Write):
    """A crash point between two effects; see `fedagent_protocol.failpoints`."""

    name: str


class Run(Effect):
    """Base of a role's jobs, which may take long; the result comes back as an `Input`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Emit(Effect):
    """An event for people and programs: a JSON line on stdout, a line in the log."""

    name: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Warn(Effect):
    """A log line about what a peer did; limited in rate, as a peer may be hostile.

    Attributes:
        peer: Id of the agent; empty where the text says who.
    """

    peer: str
    text: str


class Connect(Effect):
    """Base of changes to a role's own links and subscriptions."""

    __slots__ = ()
