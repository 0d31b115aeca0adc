"""The site's list of the revoked, as edges have it: most are behind, some know what we have lost.

A coordinator on a backup has lost who was revoked since. An edge that still goes by such a list is
asked for it before it gets a newer one: who is out must not come in again.
"""

from typing import TYPE_CHECKING

from fedagent_node.effects import Effect, Emit
from fedagent_protocol.messages import Revocations, RevocationsNeed

from .edges import EdgeSession
from .effects import LearnRevocations

if TYPE_CHECKING:
    from .engine import Engine

ASKS = 3
"""How often an edge is asked, with each status."""


def compare(engine: "Engine", edge: EdgeSession, number: int) -> list[Effect]:
    """Send an edge the list that it lacks, or ask it for one that we have not made."""
    edge.crl = number
    if not engine.revocations.crl:
        return []
    if _owes(engine, edge):
        edge.crl_asked, edge.crl_awaited = edge.crl_asked + 1, True
        asked = engine.send(edge.id, RevocationsNeed(number=engine.revocations.number))
        return [*_say(engine, edge), asked]
    behind = number < engine.revocations.number
    return [engine.send(edge.id, engine.revocations)] if behind else []


def take(engine: "Engine", edge: EdgeSession, shown: Revocations) -> list[Effect]:
    """Take in the list that an edge was asked for."""
    if not edge.crl_awaited:
        engine.counters["revocations_unasked"] += 1
        return []
    edge.crl_awaited, edge.crl_shown = False, shown.number
    return [LearnRevocations(edge.id, shown.crl)]


def tell(engine: "Engine") -> list[Effect]:
    """Send a new list to every edge but those that are out, or that have one to show."""
    return [
        engine.send(edge.id, engine.revocations)
        for edge in engine.edges.live()
        if edge.id not in engine.revocations.ids and not _owes(engine, edge)
    ]


def _owes(engine: "Engine", edge: EdgeSession) -> bool:
    """Return whether an edge has, or may have, a list that we have not made and not seen."""
    after, before = engine.lost_lists
    if edge.crl is None:
        return before > 0  # its first status tells
    unknown = edge.crl > engine.revocations.number or after < edge.crl < before
    return unknown and edge.crl != edge.crl_shown and edge.crl_asked < ASKS


def _say(engine: "Engine", edge: EdgeSession) -> list[Effect]:
    if edge.crl_asked > 1:
        return []
    fields = {"edge": edge.id, "name": edge.name, "list": edge.crl}
    return [Emit("revocations_lost", fields | {"ours": engine.revocations.number})]
