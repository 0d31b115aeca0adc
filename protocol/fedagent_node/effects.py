"""What a role's core asks of its surroundings, and what it takes in: one vocabulary. Pure.

Effects are performed in order: what is written is on the disk before the message that follows
it goes out. A role's own records are subclasses of `Write`, `RunJob` and `Input`; the result of a
`Write` or a `RunJob`, if there is one, comes back as an `Input`.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from fedagent_protocol.errors import credits_text
from fedagent_protocol.messages import AnyMessage

_ID = re.compile(r"\b[0-9a-f]{32,64}\b")
EVERYBODY = "*"
"""Receiver of a broadcast; no id is written like this."""


class Input(Struct, frozen=True):
    """Base of everything that a core takes in."""


class Received(Input, frozen=True):
    """A message that came on a link."""

    sender: str
    """Id that the topic names, or that of the key that signed. Without signatures (virtual time)
    empty where the topic names none: a coordinator that writes to one edge."""
    message: AnyMessage
    link: str
    at: float  # when the event loop read it
    link_idle: bool = True  # whether everything sent on that link before was acknowledged
    proof: bytes = b""  # the envelope without the body: key, number, signature (`envelope`)


class LinkUp(Input, frozen=True):
    """A link is connected, for the first time or again."""

    link: str


class LinkDown(Input, frozen=True):
    """A link is known to be down."""

    link: str


CLONED = (
    "two devices use one identity (a copied card or directory): delete identity.json in the "
    "--data-dir of one and start it again; if one was stolen, revoke it"
)


class TakenOver(Input, frozen=True):
    """An agent or edge, by its certificate, came to our broker while it was connected there.

    It is `sure` where messages of two of its processes came in turn.
    """

    sender: str
    sure: bool = False


class Effect(Struct, frozen=True):
    """Base of everything that a core asks for."""


class Send(Effect, frozen=True):
    """Send a message."""

    to: str  # id of the receiver, or `EVERYBODY`; empty for an edge's coordinator
    message: AnyMessage
    stored: int = 0
    """The store completes the message with so many bytes that it keeps (`Store.complete`)."""


class Write(Effect, frozen=True):
    """Base of what a role's store does at once, on the disk."""


class Mark(Write, frozen=True):
    """A crash point between two effects; see `fedagent_protocol.failpoints`."""

    name: str


class RunJob(Effect, frozen=True):
    """Base of a role's jobs, which may take long; the result comes back as an `Input`."""


class WriteModel(Write, frozen=True):
    """Write a chunk of a model that is being received."""

    digest: str
    offset: int
    data: bytes


class FinishModel(RunJob, frozen=True):
    """Verify a received model and keep it: `ModelFinished`."""

    digest: str
    size: int


class ModelFinished(Input, frozen=True):
    """A received model is kept, if it is what its digest says."""

    digest: str
    size: int
    refused: str = ""  # why it is not usable


class ContentLost(Input, frozen=True):
    """What a message was to be completed with is not on the disk any more, or damaged there."""

    digest: str
    detail: str


class ContentLostError(Exception):
    """Raised by `Store.complete`; the core takes in what was lost, and nothing is sent."""

    def __init__(self, digest: str, detail: str) -> None:
        super().__init__(digest, detail)
        self.lost = ContentLost(digest, detail)


class Emit(Effect, frozen=True):
    """An event for people and programs: a JSON line on stdout, a line in the log."""

    name: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        """Return it in words: amounts in credits, ids by their start, nothing nested."""
        head, said = self.name, []
        for key, value in self.fields.items():
            what, text = key, str(value)
            if value in ("", None) or isinstance(value, dict | list):
                continue
            if isinstance(value, bool):
                text = "yes" if value else "no"
            elif key.endswith("_micro") and isinstance(value, int):
                what, text = key.removesuffix("_micro"), f"{credits_text(value)} credits"
            elif isinstance(value, float):
                text = f"{value:.4g}"
            shown = f"{what} {_ID.sub(lambda found: found[0][:8], text)}"
            if key == self.name:
                head = shown
            else:
                said.append(shown.replace("_", " ", what.count("_")))
        return f"{head.replace('_', ' ')}: {', '.join(said)}"


class Warn(Effect, frozen=True):
    """A log line about what a peer did; limited in rate, as a peer may be hostile."""

    peer: str  # id of the agent; empty where the text says who
    text: str
    once: bool = False  # an alarm that nothing repeats: no limit, whatever else is said


class Connect(Effect, frozen=True):
    """Base of changes to a role's own links and subscriptions."""


class TakeRevocations(Connect, frozen=True):
    """Keep out who is on a list of revoked certificates: `Revoked`, if it is a newer one."""

    crl: bytes


class Revoked(Input, frozen=True):
    """The list of the revoked that holds from now on, and whose certificates are on it."""

    number: int
    ids: frozenset[str]
    crl: bytes = b""
