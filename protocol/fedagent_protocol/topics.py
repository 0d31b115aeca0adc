"""The topic tree, built and parsed here and nowhere else.

::

    fedagent/3/{site}/a/{agent}/up/{edge}/{kind}     agent -> edge
    fedagent/3/{site}/a/{agent}/up/hello             an agent that came, to all edges of a broker
    fedagent/3/{site}/a/{agent}/up/gone              its will, to the same
    fedagent/3/{site}/a/{agent}/down/{edge}/{kind}   edge -> agent
    fedagent/3/{site}/e/{edge}/beacon                edge's heartbeat to agents
    fedagent/3/{site}/e/{edge}/up/{kind}             edge -> coordinator
    fedagent/3/{site}/e/{edge}/down/{kind}           coordinator -> edge
    fedagent/3/{site}/c/{coordinator}/beacon         coordinator's heartbeat to edges

One up and one down prefix per identity, so that a broker's access list needs one pattern per
role. Agent topics name the edge, so that a shared broker can serve several. Beacons
alone are heard across versions, so that a peer of another one is refused by name.
"""

import re
from dataclasses import dataclass, replace

from .codec import Direction
from .errors import ProtocolError
from .messages import PROTOCOL_VERSION

ROOT = f"fedagent/{PROTOCOL_VERSION}"
_VERSION = re.compile(r"[1-9][0-9]{0,2}")
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class Topic:
    """A parsed topic; `version` is the sender's protocol."""

    site: str
    direction: Direction
    kind: str
    edge: str = ""
    agent: str = ""
    coordinator: str = ""
    version: int = PROTOCOL_VERSION


def check_id(value: str) -> str:
    """Return a site, agent, edge or coordinator id unchanged, or raise `ProtocolError`."""
    if not _ID.fullmatch(value):
        raise ProtocolError(f"not an id: {value[:80]!r}; use 1-64 of a-z, 0-9 and hyphen", "topic")
    return value


def agent_up(site: str, agent: str, edge: str, kind: str) -> str:
    """Return the topic on which an agent speaks to one edge."""
    return f"{ROOT}/{site}/a/{agent}/up/{edge}/{kind}"


def agent_to_all(site: str, agent: str, kind: str) -> str:
    """Return the topic on which an agent speaks to all edges of a broker, or its broker for it."""
    return f"{ROOT}/{site}/a/{agent}/up/{kind}"


def agent_down(site: str, agent: str, edge: str, kind: str) -> str:
    """Return the topic on which an edge speaks to one agent."""
    return f"{ROOT}/{site}/a/{agent}/down/{edge}/{kind}"


def edge_beacon(site: str, edge: str) -> str:
    """Return the topic of an edge's heartbeat."""
    return f"{ROOT}/{site}/e/{edge}/beacon"


def edge_up(site: str, edge: str, kind: str) -> str:
    """Return the topic on which an edge speaks to the coordinator."""
    return f"{ROOT}/{site}/e/{edge}/up/{kind}"


def edge_down(site: str, edge: str, kind: str) -> str:
    """Return the topic on which the coordinator speaks to an edge."""
    return f"{ROOT}/{site}/e/{edge}/down/{kind}"


def coordinator_beacon(site: str, coordinator: str) -> str:
    """Return the topic of a coordinator's heartbeat."""
    return f"{ROOT}/{site}/c/{coordinator}/beacon"


def agent_filters(site: str, agent: str) -> tuple[str, ...]:
    """Return what an agent subscribes to on every broker."""
    return (f"{ROOT}/{site}/a/{agent}/down/#", f"fedagent/+/{site}/e/+/beacon")


def edge_lan_filters(site: str, edge: str) -> tuple[str, ...]:
    """Return what an edge subscribes to on the broker of its agents."""
    return (f"{ROOT}/{site}/a/+/up/{edge}/#", agent_to_all(site, "+", "+"))


def edge_wan_filters(site: str, edge: str) -> tuple[str, ...]:
    """Return what an edge subscribes to on the coordinator's broker."""
    return (f"{ROOT}/{site}/e/{edge}/down/#", f"fedagent/+/{site}/c/+/beacon")


def coordinator_filters(site: str) -> tuple[str, ...]:
    """Return what the coordinator subscribes to."""
    return (f"{ROOT}/{site}/e/+/up/#",)


def parse(topic: str) -> Topic:
    """Return the parts of a topic of the forms above, or raise `ProtocolError`."""
    parts = topic.split("/")
    if len(topic) > 400 or not all(map(_ID.fullmatch, parts)) or parts[0] != "fedagent":
        raise ProtocolError(f"not a topic of ours: {topic[:120]!r}", "topic")
    found = _parsed(parts[2:])
    if found is None or not _VERSION.fullmatch(parts[1]):
        raise ProtocolError(f"not a topic of ours: {topic[:120]!r}", "topic")
    version = int(parts[1])
    if version == PROTOCOL_VERSION:
        return found
    if found.kind not in {"edge-beacon", "coordinator-beacon"}:
        raise ProtocolError(f"protocol {version}, not {PROTOCOL_VERSION}: {topic[:120]!r}", "topic")
    return replace(found, version=version)


def _parsed(parts: list[str]) -> Topic | None:
    match parts:
        case [site, "a", agent, "up", edge, kind]:
            return Topic(site, Direction.AGENT_TO_EDGE, kind, edge=edge, agent=agent)
        case [site, "a", agent, "up", ("hello" | "gone") as kind]:
            return Topic(site, Direction.AGENT_TO_EDGE, kind, agent=agent)
        case [site, "a", agent, "down", edge, kind]:
            return Topic(site, Direction.EDGE_TO_AGENT, kind, edge=edge, agent=agent)
        case [site, "e", edge, "beacon"]:
            return Topic(site, Direction.EDGE_TO_AGENT, "edge-beacon", edge=edge)
        case [site, "e", edge, "up", kind]:
            return Topic(site, Direction.EDGE_TO_COORDINATOR, kind, edge=edge)
        case [site, "e", edge, "down", kind]:
            return Topic(site, Direction.COORDINATOR_TO_EDGE, kind, edge=edge)
        case [site, "c", coordinator, "beacon"]:
            return Topic(
                site, Direction.COORDINATOR_TO_EDGE, "coordinator-beacon", coordinator=coordinator
            )
        case _:
            return None
