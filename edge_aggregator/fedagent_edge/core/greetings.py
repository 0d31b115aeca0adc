"""What the edge says of itself, to agents and to the coordinator."""

from collections import Counter

from fedagent_node.effects import EVERYBODY, Send
from fedagent_protocol.messages import (
    EdgeBeacon,
    EdgeHello,
    EdgeStatus,
    Receipt,
    ReceiptStatus,
    UpdateOffer,
)

from .sessions import Sessions
from .settings import EdgeSettings, Memory

BEACON_S = 2.0
"""Agents drop an edge after three silent periods."""


def beacon(settings: EdgeSettings) -> Send:
    """Return the heartbeat to all agents."""
    word = EdgeBeacon(edge=settings.edge, period_ms=round(BEACON_S * 1000), epoch=settings.epoch)
    return Send(EVERYBODY, word)


def hello(settings: EdgeSettings) -> EdgeHello:
    """Return what opens the session with a coordinator."""
    return EdgeHello(
        edge=settings.edge,
        epoch=settings.epoch,
        software=settings.software,
        broker=settings.broker,
        name=settings.name,
        rent=settings.rent_micro,
    )


def status(
    settings: EdgeSettings,
    memory: Memory,
    sessions: Sessions,
    counters: Counter[str],
    *,
    seq: int,
    now: float,
) -> EdgeStatus:
    """Return the heartbeat to the coordinator; what is known of agents is said once."""
    return EdgeStatus(
        run=memory.run,
        seq=seq,
        epoch=settings.epoch,
        agents=sessions.present,
        model=memory.model,
        counters=dict(counters),
        names=sessions.new_names(),
        rent=settings.rent_micro,
        devices=sessions.changed_devices(now),
    )


def expired(agent: str, offer: UpdateOffer, why: str) -> Send:
    """Return the receipt of an update that no round of this edge ordered."""
    receipt = Receipt(
        run=offer.run,
        round=offer.round,
        digest=offer.digest,
        status=ReceiptStatus.EXPIRED,
        reason=why,
    )
    return Send(agent, receipt)
