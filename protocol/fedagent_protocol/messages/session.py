"""Sessions and transfers: beacons, hellos, reports of what there is, probes, chunks."""

from typing import Annotated

from msgspec import Meta, Struct, field

from .fields import *

LONGEST_PERIOD_S = 90.0
"""Where nothing happens, the period of heartbeats doubles up to this; each names its own."""
SILENT_PERIODS = 3
"""Who is not heard for so many of its periods is gone."""

Padding = Annotated[bytes, Meta(max_length=65_536)]
MAX_REVOCATIONS_BYTES = 256 * 1024
"""Some 3500 members that were revoked, with one certificate each."""


# ------------------------------------------------------------------ both ways


class Need(Message, frozen=True, kw_only=True, tag="need"):
    """Authorise exactly these chunks, a range for each message: the receiver's credit.

    Idempotent: it is the request to repeat as well. A sender sends no chunk that was not asked for.
    """

    digest: Digest
    ranges: Ranges


class Chunk(Message, frozen=True, kw_only=True, tag="chunk"):
    """Some pieces of a content-addressed object, from `index` on."""

    digest: Digest
    index: ChunkIndex
    data: Data


class Probe(Message, frozen=True, kw_only=True, tag="probe"):
    """Measure the link: the peer answers with `reply_bytes` of padding."""

    nonce: Count
    reply_bytes: Annotated[int, Meta(ge=0, le=65_536)] = 0
    data: Padding = b""


class ProbeReply(Message, frozen=True, kw_only=True, tag="probe-reply"):
    """Answer a `Probe`."""

    nonce: Count
    data: Padding = b""


# -------------------------------------------------------------- agent and edge


class EdgeBeacon(Message, frozen=True, kw_only=True, tag="edge-beacon"):
    """The edge's heartbeat to all agents on its broker: the next comes in `period_ms` at most.

    `epoch` is new at every start of the edge: an agent says hello again when it changes,
    also behind a shared broker that outlives the edge. `task` is that of the run, while it goes on.
    """

    edge: Id
    period_ms: Millis = 5000
    epoch: RunId = ""
    task: OptionalDigest = ""
    crl: Count = 0
    """Number of the list of the revoked that it has."""


class RevocationsNeed(Message, frozen=True, kw_only=True, tag="revocations-need"):
    """Ask for a list of the revoked that another says it has; ours has this number."""

    number: Count = 0


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """Open a session, also after every reconnect; `name` and own `address` are for people."""

    software: Text = ""
    name: Name = ""
    address: Short = ""


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Answer `Hello`: the session is open. `name` is the edge's, for people; `task` the run's.

    `place` is where the edge says it is: x and y in kilometres.
    """

    edge: Id
    context_ms: Millis = 15_000
    period_ms: Millis = 5000  # as in the edge's last beacon
    name: Name = ""
    task: OptionalDigest = ""
    place: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_finite("place", *(self.place or ()))


class ContextReport(Message, frozen=True, kw_only=True, tag="context"):
    """What the agent measured of itself and of its link to this edge.

    The agent's heartbeat: the next comes in `period_ms` at most.

    `seq` grows over restarts, so that the newest report wins at the coordinator. `claim` is the
    agent's key and its signature of number, price and availability (`signed`).
    """

    available: bool
    price: Micro
    features: Annotated[dict[FeatureName, float], Meta(max_length=32)] = field(default_factory=dict)
    reason: Text = ""
    claim: Claim = b""
    period_ms: Millis = 15_000

    def __post_init__(self) -> None:
        check_finite("features", *self.features.values())


class Bye(Message, frozen=True, kw_only=True, tag="bye"):
    """Close the session in good order."""

    reason: Text = ""


class Gone(Message, frozen=True, kw_only=True, tag="gone"):
    """An agent's connection broke: its MQTT will, which its broker sends, and nobody signs."""


# -------------------------------------------------------- edge and coordinator


class CoordinatorBeacon(Message, frozen=True, kw_only=True, tag="coordinator-beacon"):
    """The coordinator's heartbeat to all edges."""

    coordinator: Id
    period_ms: Millis = 5000


class LedgerHead(Struct, frozen=True, kw_only=True):
    """The newest entry of a coordinator's ledger, signed by it (docs/coordinator.md)."""

    coordinator: Id
    seq: Count
    hash: Annotated[bytes, Meta(min_length=32, max_length=32)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class TaskClaim(Struct, frozen=True, kw_only=True):
    """The coordinator's word that a task is that of a run: `fedagent_protocol.signed`."""

    certificate: Annotated[bytes, Meta(max_length=4096)]  # its own in the site, DER
    until_s: Count  # when its word ends, in seconds since 1970
    signature: Signature


class EdgeHello(Message, frozen=True, kw_only=True, tag="edge-hello"):
    """Open the edge's session; `rent` is asked for one round.

    `epoch` names the list by which messages name agents; another begins when it is full.

    `run` and `round` are the newest that the edge was ordered, `head` the newest it was given.
    """

    edge: Id
    epoch: RunId
    software: Text = ""
    broker: Text = ""
    name: Text = ""
    rent: Micro = 0
    head: LedgerHead | None = None


class EdgeWelcome(Message, frozen=True, kw_only=True, tag="edge-welcome"):
    """Answer `EdgeHello`: the run and its task; `recipe` is its name, for people."""

    coordinator: Id
    task: Digest
    body: Body
    recipe: Name = ""
    head: LedgerHead | None = None
    claim: TaskClaim | None = None  # in a site with certificates; edges hand it on


class DeviceNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent at an edge, for people."""

    agent: Id
    name: Name = ""
    here: bool = True
    age_ms: Millis = 0  # since it was heard, when it left
    software: Short = ""
    address: Short = ""
    reason: Reason = ""  # why it does not take part; empty if it does


class EdgeStatus(Message, frozen=True, kw_only=True, tag="edge-status"):
    """The edge's heartbeat, with the devices that changed since they were sent."""

    epoch: RunId
    agents: Count = 0
    model: OptionalDigest = ""
    counters: Annotated[dict[str, int], Meta(max_length=256)] = field(default_factory=dict)
    rent: Micro = 0
    devices: Annotated[tuple[DeviceNote, ...], Meta(max_length=500)] = ()
    trouble: Text = ""
    """Why it takes no part in rounds, though it lives; empty if it does."""
    crl: Count = 0
    """Number of the list of the revoked that it goes by."""


class Revocations(Message, frozen=True, kw_only=True, tag="revocations"):
    """The site's list of the revoked, PEM; the newest holds.

    Its authority signed it: who passes it on can change nothing.
    """

    number: Count
    crl: Annotated[bytes, Meta(max_length=MAX_REVOCATIONS_BYTES)]


class RunEnded(Message, frozen=True, kw_only=True, tag="run-ended"):
    """The run is over; edges and agents wait for the next one."""

    reason: Text = ""
