"""Envelopes and cards between neighbours, through edges that cannot read them.

An envelope that cannot be sealed or opened for want of a card makes this agent show its own;
an agent that is shown a new card answers with its own. Envelopes are never kept here:
channels repeat what was not acknowledged.
"""

import math
from collections import Counter
from collections.abc import Mapping

from fedagent_agent.peers.seal import PeerSeal, Refusal
from fedagent_node.effects import Effect, Send
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import PeerDeliver, PeerSend
from fedagent_protocol.peers import (
    Envelope,
    PeerCard,
    PeerPacket,
    decode_envelope,
    decode_relayed,
    encode_envelope,
    encode_relayed,
)

CARD_GAP_S = 0.3
"""Minimum time between two showings of the card to one neighbour."""
HEARD_S = 0.4
"""How long the edge by which a neighbour was heard is taken for the only way to it."""
CROSSED_S = 0.05
"""The same when it shows a card that is new: then both cards may just have crossed."""


class PeerTransport:
    """This agent's way to its neighbours; counts what is refused, by reason.

    `ways` are the edges by which a neighbour may be reached.
    """

    def __init__(self, seal: PeerSeal, counters: Counter[str]) -> None:
        self.counters = counters
        self.ways: Mapping[str, tuple[str, ...]] = {}
        self._seal = seal
        self._heard_by: dict[str, tuple[str, float]] = {}
        self._shown_at: dict[str, float] = {}

    def admit(self, ways: Mapping[str, tuple[str, ...]], now: float) -> list[Effect]:
        """Have these neighbours, and the edges by which each may be reached."""
        fresh = [peer for peer, edges in sorted(ways.items()) if edges and not self.ways.get(peer)]
        self.ways = ways
        self._seal.neighbours = frozenset(ways)
        self._shown_at = {p: at for p, at in self._shown_at.items() if p in ways}
        self._heard_by = {p: heard for p, heard in self._heard_by.items() if p in ways}
        unknown = (peer for peer in fresh if not self._seal.epoch_of(peer))
        return [effect for peer in unknown for effect in self._show(peer, now)]

    def send(self, peer: str, envelope: Envelope, now: float) -> list[Effect]:
        """Return a sealed envelope on its way, or this agent's card if the other's is lacking."""
        try:
            data = self._seal.seal(peer, encode_envelope(envelope))
        except ProtocolError as error:
            if error.detail == Refusal.NO_CARD:
                return self._show(peer, now)
            self.counters[error.reason] += 1
            return []
        return self._send(peer, encode_relayed(PeerPacket(data=data)), now)

    def receive(
        self, edge: str, message: PeerDeliver, now: float
    ) -> tuple[list[Effect], Envelope | None]:
        """Open what came; return what is to be sent, and the envelope if it was one.

        Raises:
            ProtocolError: It is neither a card nor a packet, or holds no envelope.
        """
        relayed = decode_relayed(message.body)
        sender = message.sender
        if sender not in self.ways:
            self.counters["peer_stranger"] += 1
            return [], None
        try:
            if isinstance(relayed, PeerCard):
                return self._meet(relayed, now), None
            opened = self._seal.open(sender, relayed.data)
        except ProtocolError as error:
            self.counters[error.reason] += 1
            wants_card = error.detail in (Refusal.NO_CARD, Refusal.EPOCH)
            return self._show(sender, now) if wants_card else [], None
        self._heard_by[sender] = edge, now
        return [], decode_envelope(opened)

    def _meet(self, card: PeerCard, now: float) -> list[Effect]:
        """Take a card, whichever way it came; answer with the own one."""
        known = {peer: self._seal.epoch_of(peer) for peer in self.ways}
        peer = self._seal.meet(card)
        if known[peer] == card.epoch:
            return self._show(peer, now)
        # It has started anew since, and knows nothing of what was shown before.
        return self._show(peer, now, gap_s=0.0 if known[peer] else CROSSED_S)

    def _show(self, peer: str, now: float, *, gap_s: float = CARD_GAP_S) -> list[Effect]:
        if now < self._shown_at.get(peer, -math.inf) + gap_s:
            return []
        self._shown_at[peer] = now
        return self._send(peer, encode_relayed(self._seal.card), now)

    def _send(self, peer: str, body: bytes, now: float) -> list[Effect]:
        """Send by the edge that the neighbour was just heard by; else by all that may reach it."""
        ways = self.ways.get(peer, ())
        heard = self._heard_by.get(peer)
        # An edge that has carried once may drop the rest: after a while others are tried too.
        if heard is not None and heard[0] in ways and now < heard[1] + HEARD_S:
            ways = (heard[0],)
        if not ways:
            self.counters["peer_no_way"] += 1
        return [Send(edge, PeerSend(to=peer, body=body)) for edge in ways]
