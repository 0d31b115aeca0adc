"""What the edge's core asks of its disk, what comes back, and what it must remember."""

import msgspec
from msgspec import Struct

from fedagent_node.effects import Input, Run, Write
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
    CHUNK_BYTES,
    LedgerHead,
    OptionalDigest,
    OutcomeStatus,
    RoundOrder,
    RoundReport,
    TaskClaim,
    UpdateOffer,
)
from fedagent_protocol.transfer import Layout
from fedagent_task.aggregation.bounds import Term, Told
from fedagent_task.aggregation.robust import PLAIN, Robust
from fedagent_task.aggregation.sketch import Floats
from fedagent_task.secure_aggregation.keys import Seed
from fedagent_task.secure_aggregation.ring import Ring
from fedagent_task.secure_aggregation.suspicion import Suspects

from .admission import Verdict

COORDINATOR = ""
"""Receiver of what goes up."""
LAN = "lan"
WAN = "wan"
"""Links to the agents' broker and to the coordinator's; with a shared broker, both are there."""

MAX_LIARS = 1024
Key = tuple[str, int, str]
"""(run, round, agent): what names one update at an edge."""


class _Model(Struct, frozen=True):
    once: OptionalDigest = ""
    once_bytes: int = 0


class _Task(Struct, frozen=True):
    """What an edge reads of a task to serve it; it skips what it does not know."""

    model: _Model = _Model()


_tasks = msgspec.msgpack.Decoder(_Task)


def once_in(body: bytes) -> tuple[str, int]:
    """Return digest and bytes of what a task's devices get once; nothing if it cannot be."""
    try:
        model = _tasks.decode(body).model
        if model.once:
            Layout(model.once_bytes, CHUNK_BYTES)
    except (msgspec.DecodeError, ProtocolError):
        return "", 0
    return (model.once, model.once_bytes) if model.once else ("", 0)


class Memory(Struct, kw_only=True):
    """What survives a restart; `report` is not receipted, as far as the disk knows.

    `once` is what the task's devices get once, of `once_bytes`; empty if there is nothing.
    """

    run: str = ""
    task: str = ""
    body: bytes = b""
    model: str = ""
    model_bytes: int = 0
    last_round: int = 0
    report: RoundReport | None = None
    once: str = ""
    once_bytes: int = 0
    head: LedgerHead | None = None
    """Newest head of the ledger of the coordinator that was served last."""
    told: tuple[Told, ...] = ()
    alignments: dict[str, float] = {}
    """The newest updates of the run, and how its devices were aligned: what is usual here."""
    recipe: str = ""
    """What people call the task: devices prepare it before the coordinator has welcomed us."""
    claim: TaskClaim | None = None
    """The coordinator's word that the task is the run's: devices of its site ask for it."""
    mask_liars: tuple[str, ...] = ()
    """The newest that gave false shares in this run: they are in none of its masks any more."""
    mask_suspects: tuple[Suspects, ...] = ()
    """The newest pairs of this run of which one has lied about a share."""

    def bar(self, agent: str) -> None:
        """Let an agent into no masks of this run any more."""
        others = tuple(one for one in self.mask_liars if one != agent)
        self.mask_liars = (*others, agent)[-MAX_LIARS:]

    def suspect(self, pairs: tuple[Suspects, ...]) -> None:
        """Let the two of a pair into no masks of this run together any more."""
        self.mask_suspects = (*self.mask_suspects, *pairs)[-MAX_LIARS:]

    def turns_taken(self, pairs: tuple[Suspects, ...], *, void: bool) -> None:
        """Count a round for those of the pairs who were there."""
        self.mask_suspects = tuple(
            pair.after(void=void) if pair in pairs else pair for pair in self.mask_suspects
        )

    def adopt(self, run: str, task: str, body: bytes) -> None:
        """Begin with another run, or with this one's task as it is from now on."""
        self.once, self.once_bytes = once_in(body)
        if run != self.run:
            self.model, self.model_bytes = "", 0
            self.last_round, self.report = 0, None
            self.told, self.alignments = (), {}
            self.mask_liars, self.mask_suspects = (), ()
        self.run, self.task, self.body, self.claim = run, task, body, None


class OpenRound(Struct, frozen=True, kw_only=True):
    """A round that was ordered; `began_at` is on the monotonic clock of `boot`."""

    run: str
    boot: str = ""
    order: RoundOrder
    base: str
    began_at: float
    buffers: tuple[str, ...] = ()
    latest: tuple[str, ...] = ()
    """Tensors that are averaged as they are, and that take the newest value."""
    ring: Ring | None = None  # of masked updates
    sketched: bool = False
    signs: int = 0
    """Whether updates are sketched, and by which seed, which the disk draws."""


class UpdateRecord(Struct, frozen=True, kw_only=True):
    """How an agent ended, or, while `status` is None, that its update is on its way."""

    run: str
    round: int
    agent: str
    offer: UpdateOffer | None = None
    status: OutcomeStatus | None = None
    reason: str = ""
    tau_ms: int = 0
    weight: float = 0.0
    norm: float = 0.0
    position: int = 0
    """In the running sum."""
    coefficient: float | None = None
    """Of the update in the sum; None for its weight."""
    local_steps: float = 0.0
    control_norm: float = 0.0
    aside: bool = False
    """It is not added to the sum before the close."""

    @property
    def key(self) -> Key:
        """What names it."""
        return (self.run, self.round, self.agent)


class ReopenedRound(Struct, frozen=True):
    """The round that was open when the process ended, with times on the clock of this one."""

    opened: OpenRound
    updates: list[tuple[UpdateRecord, set[int]]]
    """Each with its chunks on disk, if it is not whole."""
    sketches: dict[str, Floats] = {}
    """By agent, of those that are whole."""


class SaveState(Write, frozen=True):
    """Store durably what a restart must know."""

    memory: Memory


class SaveRound(Write, frozen=True):
    """Store a round before anybody is ordered."""

    opened: OpenRound


class ForgetRound(Write, frozen=True):
    """Drop the round and its spool."""


class OpenSpool(Write, frozen=True):
    """Begin the spool of an update; `DiskFailed` on failure, as for all writes to a spool."""

    key: Key
    offer: UpdateOffer


class WriteSpool(Write, frozen=True):
    """Write a chunk of an update at its offset."""

    key: Key
    index: int
    data: bytes


class MoveSpool(Write, frozen=True):
    """Go on with the spool of an update in a later round."""

    old: Key
    key: Key
    offer: UpdateOffer


class KeepWork(Write, frozen=True):
    """Keep the spools and models of unfinished work when a round is forgotten, and no others."""

    keys: frozenset[Key] = frozenset()
    models: frozenset[str] = frozenset()


class DropSpool(Write, frozen=True):
    """Remove the spool of an update."""

    key: Key


class NoteEnd(Write, frozen=True):
    """Remember over a restart that an agent ended without an update."""

    record: UpdateRecord


class DiskFailed(Input, frozen=True):
    """The disk did not take an update."""

    key: Key
    detail: str


class DiskRefused(Input, frozen=True):
    """The disk did not take a part of a model, or took the state from its reserve."""

    detail: str
    digest: str = ""  # the model


class TryDisk(Write, frozen=True):
    """See whether there is room for so many bytes: `DiskTried`."""

    size: int


class DiskTried(Input, frozen=True):
    """Whether there is room, or why not."""

    refused: str = ""


class Check(Run, frozen=True):
    """Verify a complete update: `Checked`, `DiskFailed`, or `ModelLost`."""

    key: Key
    offer: UpdateOffer
    norm_limit: float
    control_limit: float = 0.0
    edge: str = ""
    """For whom the agent must have claimed its work; empty in virtual time, where nobody signs."""


class Checked(Input, frozen=True):
    """The verdict of a `Check`."""

    key: Key
    verdict: Verdict


class Admit(Run, frozen=True):
    """Store a verdict, add the update to the sum if it has weight: `Admitted`, or `DiskFailed`."""

    record: UpdateRecord


class Admitted(Input, frozen=True):
    """An update is durable, so that its receipt may go out."""

    key: Key


class Commit(Run, frozen=True):
    """Make the new edge model of the sum, times `scale`: `Committed`, or `ModelLost`.

    Noise of this `deviation` is added to each number of the sum before anything else is done.
    `terms` are the places of the agents' updates, in the order in which they came.
    """

    run: str
    round: int
    base: str
    scale: float = 1.0
    deviation: float = 0.0
    unmask: tuple[Seed, ...] = ()  # masks that are left in a sum of masked updates
    rule: Robust = PLAIN
    terms: tuple[tuple[str, Term], ...] = ()


class Committed(Input, frozen=True):
    """The new edge model, with its first chunk; without a digest, the sum was not usable."""

    run: str
    round: int
    digest: str = ""
    size: int = 0
    first: bytes = b""
    refused: str = ""  # why the disk did not take it
    weight: float = 0.0  # of the sum, where updates were masked


class ModelLost(Input, frozen=True):
    """The base model of a round is not on the disk any more, or damaged there."""

    run: str
    round: int
    base: str
    detail: str


class OpenModel(Write, frozen=True):
    """Begin to receive a model of the coordinator."""

    digest: str
