"""What the edge's core asks of its disk, and what comes back."""

from msgspec import Struct

from fedagent_node.effects import Input, RunJob, Write
from fedagent_protocol import messages as m
from fedagent_task.aggregation import Weighed
from fedagent_task.aggregation.bounds import Told
from fedagent_task.secure_aggregation.keys import Seed

from .admission import Verdict
from .weighing import task_of

COORDINATOR = ""
"""Receiver of what goes up."""
LAN = "lan"
WAN = "wan"
"""Links to the agents' broker and to the coordinator's; with a shared broker, both are there."""

MAX_LIARS = 1024
Key = tuple[str, int, str]
"""(run, round, agent): what names one update at an edge."""
File = tuple[str, str]
"""(agent, digest): what names the file of an update, in whatever round it is sent."""


class Ignored(Exception):  # noqa: N818 - it is a decision, not a failure
    """Raised with the name of a counter where a message fits nothing that is open."""


class Memory(Struct, kw_only=True, tag=True):
    """What survives a restart; `report` is not receipted, as far as the disk knows."""

    run: str = ""
    task: str = ""
    body: bytes = b""
    recipe: str = ""
    """What people call the task: devices prepare it before the coordinator has welcomed us."""
    claim: m.TaskClaim | None = None
    """The coordinator's word that the task is the run's: devices of its site ask for it."""
    model: str = ""
    model_bytes: int = 0
    once: str = ""
    once_bytes: int = 0
    """What the task's devices get once; empty if there is nothing."""
    last_round: int = 0
    open_round: int = 0
    """The last, while it is not reported; 0 of none."""
    report: m.RoundReport | None = None
    head: m.LedgerHead | None = None
    """Newest head of the ledger of the coordinator that was served last."""
    told: tuple[Told, ...] = ()
    alignments: dict[str, float] = {}
    """The newest updates of the run, and how its devices were aligned: what is usual here."""
    mask_liars: tuple[str, ...] = ()
    """The newest that gave false shares in this run: they are in none of its masks any more."""
    void: dict[str, m.Receipt] = {}
    """What agents that were away are to hear of work that is not paid."""

    def bar(self, agent: str) -> None:
        """Let an agent into no masks of this run any more."""
        others = tuple(one for one in self.mask_liars if one != agent)
        self.mask_liars = (*others, agent)[-MAX_LIARS:]

    def adopt(self, run: str, task: str, body: bytes) -> None:
        """Begin with another run, or with this one's task as it is from now on."""
        model = task_of(body).model
        self.once, self.once_bytes = "", 0
        if model is not None and model.once and model.once_bytes:
            self.once, self.once_bytes = model.once, model.once_bytes
        if run != self.run:
            self.model, self.model_bytes = "", 0
            self.last_round, self.report = 0, None
            self.told, self.alignments = (), {}
            self.mask_liars = ()
        self.run, self.task, self.body, self.claim = run, task, body, None


class OpenRound(Struct, frozen=True, kw_only=True, tag=True):
    """A round that was ordered; `began_at` is on the monotonic clock of `boot`."""

    run: str
    boot: str = ""
    order: m.RoundOrder
    base: str
    began_at: float
    signs: int = 0
    """Seed of the sketches of updates, which the disk draws."""


class Ended(Struct, frozen=True, tag=True):
    """How an ordered agent ended, `after_s` the order: with a whole update, or for a reason."""

    key: Key
    after_s: float
    offer: m.UpdateOffer | None = None
    status: m.OutcomeStatus = m.OutcomeStatus.ARRIVED
    reason: str = ""

    @property
    def file(self) -> File:
        """What names the file of its update, where it is large."""
        assert self.offer is not None
        return self.key[2], self.offer.digest


Record = Memory | OpenRound | Ended


class ReopenedRound(Struct, frozen=True):
    """The round that was open when the process ended, with times on the clock of this one.

    Who ended is in the order of their ends, each with the verdict on its update.
    """

    opened: OpenRound
    ended: list[tuple[Ended, Verdict]]


class Save(Write, frozen=True):
    """Note what a restart must know: a state durably, the rest with the next promise."""

    record: Record
    owed: tuple[Key, ...] = ()
    """Updates that this state makes durable: `Kept`."""


class ForgetRound(Write, frozen=True):
    """Drop the round and its files, but for the files and models of unfinished work."""

    files: frozenset[File] = frozenset()
    models: frozenset[str] = frozenset()


class WriteSpool(Write, frozen=True):
    """Write a chunk of an update; `DiskFailed` on failure, as for all of an update."""

    file: File
    offset: int
    data: bytes


class DropSpool(Write, frozen=True):
    """Remove the file of an update."""

    file: File


class DiskFailed(Input, frozen=True):
    """The disk did not take a part of an agent's update, or of a model.

    Without either it has no room for what a restart must know.
    """

    detail: str
    agent: str = ""
    digest: str = ""  # the model


class TryDisk(Write, frozen=True):
    """See whether there is room for so many bytes: `DiskTried`."""

    size: int


class DiskTried(Input, frozen=True):
    """Whether there is room, or why not."""

    refused: str = ""


class Admit(RunJob, frozen=True):
    """Verify a complete update: `Admitted`, or `DiskFailed`. Results keep the order of asking."""

    key: Key
    offer: m.UpdateOffer
    after_s: float
    norm_limit: float
    edge: str = ""
    """For whom the agent must have claimed its work; empty in virtual time, where nobody signs."""
    whole: bytes = b""
    """The update, where it is in no file: it is small."""


class Admitted(Input, frozen=True):
    """The verdict on an update; one that is valid is not durable yet."""

    key: Key
    verdict: Verdict


class Keep(RunJob, frozen=True):
    """Make valid updates durable, in the order in which they came, with one sync: `Kept`."""

    ended: tuple[Ended, ...]


class Kept(Input, frozen=True):
    """Updates that survive a power cut from now on; or why the disk did not take them."""

    keys: tuple[Key, ...]
    refused: str = ""


class Commit(RunJob, frozen=True):
    """Make the new edge model of the sum, times `scale`: `Committed`, or `ContentLost`.

    `terms` are the places of the updates in it, in the order in which they came.
    """

    run: str
    round: int
    base: str
    scale: float = 1.0
    unmask: tuple[Seed, ...] = ()  # masks that are left in a sum of masked updates
    terms: tuple[tuple[File, Weighed], ...] = ()


class Committed(Input, frozen=True):
    """The new edge model, with its first chunk; without a digest, the sum was not usable."""

    run: str
    round: int
    digest: str = ""
    size: int = 0
    first: bytes = b""
    refused: str = ""  # why the disk did not take it
    weight: float = 0.0  # of the sum, where updates were masked


class OpenModel(Write, frozen=True):
    """Begin to receive a model of the coordinator."""

    digest: str
