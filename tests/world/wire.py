"""The brokers of a world: what went over them is kept, and who lies is made to."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.tensors import digest_of
from fedagent_testbed.kernel import Network
from fedagent_testbed.world import VirtualFederation

Change = Callable[[Any], list[Any]]
"""Takes a message, and returns what is sent in its place."""


@dataclass(frozen=True)
class Sent:
    """A message that somebody sent, lost or not."""

    at: float
    sender: str
    to: str
    message: Any


class Wire(Network):
    """A network that keeps what was sent.

    Attributes:
        lies: By sender and kind.
        blobs: Parts of models and updates, by digest and index.
        hears: Take the topic of everything that arrives.
    """

    lies: dict[tuple[str, str], Change]
    sent: list[Sent]
    blobs: dict[str, dict[int, bytes]]
    hears: list[Callable[[str], None]]

    @classmethod
    def around(cls, here: VirtualFederation) -> "Wire":
        """Put a federation that has not begun on such a network."""
        old = here.network
        wire = cls(old.kernel, old.rng, old.faults, old.deliver, old.defer)
        wire.lies, wire.sent, wire.blobs, wire.hears = {}, [], defaultdict(dict), []
        here.network = wire
        for node in here.nodes.values():
            node.network = wire
        return wire

    def send(self, broker: str, member: str, topic: str, payload: bytes, *, by: str = "") -> None:
        """Keep a message, and send it or what a liar says in its place."""
        parsed = topics.parse(topic)
        direction = parsed.direction
        sender = {
            Direction.AGENT_TO_EDGE: parsed.agent,
            Direction.EDGE_TO_AGENT: parsed.edge,
            Direction.EDGE_TO_COORDINATOR: parsed.edge,
            Direction.COORDINATOR_TO_EDGE: "coordinator",
        }[direction]
        message = decode(direction, payload)
        change = self.lies.get((sender, parsed.kind))
        for said in [message] if change is None else change(message):
            self.sent.append(Sent(self.kernel.now, sender, member, said))
            self._keep(said)
            bytes_ = payload if said is message else encode(said)
            super().send(broker, member, topic, bytes_, by=by)

    def _arrive(self, broker: str, member: str, topic: str, payload: bytes) -> None:
        if member in self._members.get(broker, {}) and broker not in self.down:
            for hear in self.hears:
                hear(topic)
        super()._arrive(broker, member, topic, payload)

    @property
    def liars(self) -> frozenset[str]:
        """Who says other things than it means to."""
        return frozenset(sender for sender, _ in self.lies)

    def _keep(self, message: object) -> None:
        match message:
            case m.Chunk():
                self.blobs[message.digest][message.index] = message.data
            case m.UpdateOffer() | m.GlobalModel():
                if message.first:
                    self.blobs[message.digest][0] = message.first
            case m.RoundReport() if message.model and message.first:
                self.blobs[message.model][0] = message.first

    def said(self, kind: type, *, sender: str = "") -> list[Sent]:
        """Return all messages of a kind, in the order of sending."""
        return [
            one for one in self.sent if isinstance(one.message, kind) and sender in ("", one.sender)
        ]

    def blob(self, digest: str) -> bytes | None:
        """Return a model or an update that went over the wire whole."""
        for chunk_bytes in (1024, m.CHUNK_BYTES):
            body = bytearray()
            for index, part in sorted(self.blobs.get(digest, {}).items()):
                body[index * chunk_bytes : index * chunk_bytes + len(part)] = part
            if digest_of(body) == digest:
                return bytes(body)
        return None
