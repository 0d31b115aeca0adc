"""A run of devices that decide among themselves, as processes, and all that it leaves behind."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from fedagent_agent.peers.core.records import SlotRecord
from fedagent_agent.peers.store import read_slots
from fedagent_node.link import Arrival
from fedagent_protocol import topics
from fedagent_protocol.codec import decode, encode
from fedagent_protocol.messages import Message
from fedagent_testbed.local import LocalField, RoleProcess
from tests.fakes.leak_search import Leak, Search
from tests.fakes.voices import bare

from .listener import Listener, shared_broker
from .support import RECIPES, labels, new_field

RECIPE = RECIPES / "da-digits.toml"
WINDOW = 397
"""Samples of an opinion: a prime, so that no other share or counter is one by chance."""
HELD_OUT = f"digits:start={WINDOW}"
_BYTES = ("first", "data", "body")
"""Fields of messages that hold weights, or what is sealed: four bytes of them may be anything."""


@dataclass(frozen=True)
class Heard:
    """One message of the run.

    Attributes:
        rest: It without its weights or sealed bytes, as bytes.
    """

    topic: str
    payload: bytes
    kind: str
    agent: str
    message: Message
    rest: bytes

    @property
    def sealed(self) -> bytes:
        """What only the addressee can read; empty for most messages."""
        return bytes(getattr(self.message, "body", b"")) if self.kind[:5] == "peer-" else b""


@dataclass(frozen=True)
class Ran:
    """What a run left behind.

    Attributes:
        slots: What each device keeps for itself, by id.
        folders: Data directories of the devices, by id.
        stored: Canaries in files of edge and coordinator while they ran.
        said: Stdout by name of the process, with every number as it was.
    """

    search: Search
    slots: Mapping[str, list[SlotRecord]]
    heard: tuple[Heard, ...]
    folders: Mapping[str, Path]
    others: tuple[Path, ...]
    logs: tuple[Path, ...]
    stored: tuple[Leak, ...]
    said: Mapping[str, bytes]


def run_da(
    directory: Path, *, rounds: int, agents: int, environment: Mapping[str, str] | None = None
) -> Ran:
    """Run the recipe on one broker that everything goes through, from the first message on.

    Args:
        environment: Of the agents; None for ours.
    """
    with shared_broker(directory / "broker") as broker, Listener(broker) as listener:
        with new_field(directory, broker=broker, log_level="debug") as field:
            coordinator = field.coordinator(
                RECIPE,
                wait_edges=1,
                wait_agents=agents,
                sets=(f"rounds.count={rounds}", f"opinions.window={WINDOW}"),
            )
            edge = field.edge("edge-0")
            for number in range(agents):
                _start_agent(field, number, environment)
            coordinator.wait("end", timeout_s=120)
            folders = {
                str(process.wait("ready")["id"]): Path(str(process.config["data_dir"]))
                for process in field.processes.values()
                if process.role == "agent"
            }
            slots = {me: read_slots(folder) for me, folder in folders.items()}
            search = Search.of(slots)
            others = tuple(Path(str(role.config["data_dir"])) for role in (coordinator, edge))
            # Now, while databases have a write-ahead log beside them.
            stored = look_at(search, others)
        heard = tuple(_heard(arrival) for arrival in list(listener.heard))
    return Ran(
        search=search,
        slots=slots,
        heard=heard,
        folders=folders,
        others=(*others, directory / "broker"),
        logs=tuple(process.log for process in field.processes.values()),
        stored=tuple(stored),
        said={name: _said(process) for name, process in field.processes.items()},
    )


def look_at(search: Search, folders: tuple[Path, ...]) -> list[Leak]:
    """Return the canaries in all files of these folders; of weights only in eight bytes."""
    weights = ("models", "spool")
    return [leak for folder in folders for leak in search.look_through(folder, models=weights)]


def look_through_traffic(search: Search, heard: tuple[Heard, ...]) -> list[Leak]:
    """Return the canaries in messages and topics; of weights and envelopes in eight bytes only."""
    found = []
    for short, data in ((True, [each.rest for each in heard]), (False, [*map(_payload, heard)])):
        # All at once; one by one only to say where.
        if not search.look("", b"\0|\0".join(data), short=short):
            continue
        for each, part in zip(heard, data, strict=True):
            found += search.look(each.topic, part, short=short)
    topics_ = "\n".join(each.topic for each in heard)
    return found + search.look("a topic", topics_.encode())


def _start_agent(field: LocalField, number: int, environment: Mapping[str, str] | None) -> None:
    config = {
        "stream": labels(number),
        "held_out": HELD_OUT,
        "price": {"base": 0.0, "per_compute": 0.0},
        "position": [0.1 * number, 0.0],
        "seed": number + 3,
    }
    field.start("agent", f"agent-{number}", config, environment=environment)


def _heard(arrival: Arrival) -> Heard:
    topic = topics.parse(arrival.topic)
    payload = bare(arrival.payload)  # a signature has some canary in it by chance
    message = decode(topic.direction, payload)
    emptied = {name: b"" for name in _BYTES if getattr(message, name, b"")}
    rest = encode(structs.replace(message, **emptied))
    return Heard(arrival.topic, payload, topic.kind, topic.agent, message, rest)


def _payload(heard: Heard) -> bytes:
    return heard.payload


def _said(process: RoleProcess) -> bytes:
    """Return the events of a process as it wrote them; `at` is ours."""
    events = [{k: v for k, v in event.items() if k != "at"} for event in process.events]
    return "\n".join(map(json.dumps, events)).encode()
