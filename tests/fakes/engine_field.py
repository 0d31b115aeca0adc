"""The engine with the smallest possible disk, and a network that a test may spoil."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs

from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.core.decision import Learning
from fedagent_coordinator.core.edges import Indices
from fedagent_coordinator.core.engine import Engine
from fedagent_coordinator.core.outcomes import SILENT
from fedagent_coordinator.core.phases import Ended
from fedagent_coordinator.core.settings import (
    NO_EVALUATIONS,
    PastEvaluations,
    Progress,
    Settings,
)
from fedagent_coordinator.iterations import IterationControl
from fedagent_coordinator.iterations.fixed import LearnerControl
from fedagent_coordinator.placement.base import PlacementPolicy
from fedagent_coordinator.policies.base import Feedback, SelectionPolicy
from fedagent_coordinator.policies.baselines import RandomPolicy
from fedagent_node.effects import (
    EVERYBODY,
    Effect,
    Emit,
    FinishModel,
    ModelFinished,
    Received,
    Send,
    Warn,
    WriteModel,
)
from fedagent_protocol import messages as m
from fedagent_protocol.messages import AnyMessage
from fedagent_protocol.tensors import Manifest, decode_tensors, digest_of, encode_tensors
from fedagent_task.recipe.spec import (
    BudgetSpec,
    LimitsSpec,
    ModelSpec,
    PlacementSpec,
    PolicySpec,
    Recipe,
    RoundsSpec,
)
from fedagent_testbed.kernel import Kernel
from tests.fakes.toy_edge import ToyAgent, ToyEdge

S = TypeVar("S", bound=Struct)

RUN = "ab" * 16
START: dict[str, npt.NDArray[np.generic]] = {"weight": np.zeros(500, dtype=np.float32)}
MANIFEST = Manifest.of(START)
START_BYTES = encode_tensors(START)

Plan = Callable[[str], list[float]]
"""When copies of a message arrive, in seconds from now; none = lost."""


@dataclass
class MemoryIndices:
    """Run-wide indices in memory."""

    client_of: dict[str, int] = field(default_factory=dict)
    edge_of: dict[str, int] = field(default_factory=dict)
    label_of: dict[str, str] = field(default_factory=dict)

    def clients(self, ids: Sequence[str]) -> npt.NDArray[np.int32]:
        return np.array(
            [self.client_of.setdefault(i, len(self.client_of)) for i in ids], dtype=np.int32
        )

    def known(self, ids: Sequence[str]) -> npt.NDArray[np.int32]:
        return np.array([self.client_of.get(i, -1) for i in ids], dtype=np.int32)

    def label_clients(self, labels: Mapping[str, str]) -> None:
        self.label_of.update(labels)

    def edge(self, edge: str) -> int:
        return self.edge_of.setdefault(edge, len(self.edge_of))

    def label_edge(self, edge: str, label: str) -> None:
        self.label_of[edge] = label

    def sizes(self) -> tuple[int, int]:
        return len(self.client_of), len(self.edge_of)


_RECIPE = Recipe(
    name="toy",
    seed=1,
    model=ModelSpec(kind="linear", features=499),
    rounds=RoundsSpec(count=3, deadline_s=2.0, max_wait_s=4.0, merge_timeout_s=5.0),
    budget=BudgetSpec(per_edge_micro=10_000_000),
    policy=PolicySpec(name="random"),
    limits=LimitsSpec(norm=0.0, max_samples=1000),
)


def settings(**changes: object) -> Settings:
    """Return settings of a short run; rounds and budget of its recipe by their own names."""
    given = dict(changes)

    def changed(section: S, names: Mapping[str, str]) -> S:
        return structs.replace(section, **{names[n]: given.pop(n) for n in names if n in given})

    def own(section: Struct) -> dict[str, str]:
        return {name: name for name in section.__struct_fields__}

    every = given.pop("opinions_every", 1)
    asked = {"opinions_timeout_s": "timeout_s"}
    if "policy" in given:
        given["name"] = given.pop("policy")
    recipe = structs.replace(
        _RECIPE,
        rounds=changed(_RECIPE.rounds, own(_RECIPE.rounds)),
        budget=changed(_RECIPE.budget, own(_RECIPE.budget)),
        policy=changed(_RECIPE.policy, own(_RECIPE.policy)),
        opinions=structs.replace(changed(_RECIPE.opinions, asked), every=every),
        peers=structs.replace(changed(_RECIPE.peers, {"volunteers": "best"}), slot_rounds=every),
        placement=PlacementSpec(name="min-cost" if given.pop("placed", False) else "coordinator"),
    )
    base: dict[str, object] = {"run": RUN, "coordinator": "c-1", "task": "e" * 64, "body": b"task"}
    return Settings(**{**base, "recipe": recipe, **given})  # type: ignore[arg-type] # a test's keywords


@dataclass
class Field:
    """An engine, edges, and what the books would hold."""

    edges: list[ToyEdge]
    settings: Settings = field(default_factory=settings)
    policy: SelectionPolicy = field(default_factory=RandomPolicy)
    control: IterationControl = field(default_factory=LearnerControl)
    placement: PlacementPolicy | None = None
    plan: Plan = lambda _: [0.001]
    kernel: Kernel = field(default_factory=Kernel)
    blobs: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    reserved: dict[int, fx.Reserve] = field(default_factory=dict)
    settled: dict[int, fx.Settle] = field(default_factory=dict)
    learnt: list[int] = field(default_factory=list)
    feedbacks: dict[int, Feedback] = field(default_factory=dict)
    evaluated: dict[int, fx.BookOpinions | fx.BookVolunteers] = field(default_factory=dict)
    past: PastEvaluations = NO_EVALUATIONS
    committed: list[str] = field(default_factory=list)
    events: list[Emit] = field(default_factory=list)
    warned: list[Warn] = field(default_factory=list)
    sent: list[tuple[str, m.CoordinatorToEdge]] = field(default_factory=list)
    end: str = ""

    def __post_init__(self) -> None:
        start = digest_of(START_BYTES)
        self.blobs[start] = START_BYTES
        self.engine = self.make_engine(
            Progress(
                next_round=1,
                rounds_done=0,
                spent_micro=0,
                model=start,
                model_size=len(START_BYTES),
                evaluations=self.past,
            )
        )

    def make_engine(self, progress: Progress, indices: Indices | None = None) -> Engine:
        """Return an engine that starts where `progress` says."""
        engine = Engine(
            settings=self.settings,
            progress=progress,
            learning=Learning(self.policy, self.control, self.placement),
            indices=indices or MemoryIndices(),
            in_books=self._in_books,
            clock=lambda: self.kernel.now,
        )
        engine.run.models.chunk_bytes = 1024
        return engine

    def _in_books(self, round_: int, edge: str) -> bool:
        settled = self.settled.get(round_)
        results = settled.edges if settled is not None else ()
        return any(result.edge == edge and result.failed != SILENT for result in results)

    def run(self, *, until: float = 300.0, hello: bool = True) -> None:
        """Run to the end of the run, or for `until` virtual seconds."""
        kernel = self.kernel
        self.perform(self.engine.receive(fx.Start(), kernel.now))
        for edge in self.edges if hello else []:
            self.up(edge, edge.hello())
        self._beat()
        kernel.run(until=kernel.now + until, stop=lambda: isinstance(self.engine.phase, Ended))
        kernel.run(until=kernel.now + 3.0)

    def up(self, edge: ToyEdge, message: m.EdgeToCoordinator) -> None:
        """Carry a message to the engine."""
        for delay in self.plan(m.kind(message)):
            self.kernel.after(delay, lambda: self._arrive(edge.id, message))

    def _arrive(self, edge: str, message: m.EdgeToCoordinator) -> None:
        self.perform(self.hear(edge, message))

    def hear(self, edge: str, message: m.EdgeToCoordinator) -> list[Effect]:
        """Give the engine a message; return what it asks for."""
        now = self.kernel.now
        return self.engine.receive(Received(edge, message, "edges", now), now)

    def _complete(self, message: AnyMessage) -> m.CoordinatorToEdge:
        """Put in the bytes of a model."""
        match message:
            case m.GlobalModel():
                return structs.replace(message, first=self.blobs[message.digest][:1024])
            case m.Chunk():
                start = 1024 * message.index
                data = self.blobs[message.digest][start : start + 1024]
                return structs.replace(message, data=data)
            case _:
                return cast("m.CoordinatorToEdge", message)

    def _beat(self) -> None:
        """Tick edges every 50 ms and the engine when it wants to be."""
        for edge in self.edges:
            for message in edge.tick(self.kernel.now):
                self.up(edge, message)
        due = self.engine.next_due()
        if due is not None and due <= self.kernel.now:
            self.perform(self.engine.tick(self.kernel.now))
        self.kernel.after(0.05, self._beat)

    def perform(self, effects: list[Effect]) -> None:
        """Do what the runtime would do, and check the order of things."""
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        now = self.kernel.now
        match effect:
            case Send():
                if isinstance(effect.message, m.RoundOrder):
                    assert effect.message.round in self.reserved, "ordered before reserved"
                    assert effect.message.round not in self.settled, "ordered after its end"
                if effect.to != EVERYBODY:
                    self._down(effect.to, self._complete(effect.message))
            case fx.Reserve():
                assert effect.round not in self.reserved, "reserved twice"
                self.reserved[effect.round] = effect
            case fx.Settle():
                assert effect.round in self.reserved, "settled before reserved"
                assert effect.round not in self.settled, "settled twice"
                self.settled[effect.round] = effect
            case fx.Learn() | fx.BookOpinions() | fx.BookVolunteers():
                self._learn(effect)
            case WriteModel():
                self.parts.setdefault(effect.digest, {})[effect.offset] = effect.data
            case FinishModel():
                data = b"".join(d for _, d in sorted(self.parts.pop(effect.digest).items()))
                refused = "" if digest_of(data) == effect.digest else "damaged"
                if not refused:
                    self.blobs[effect.digest] = data
                finished = ModelFinished(effect.digest, effect.size, refused)
                self.perform(self.engine.receive(finished, now))
            case fx.Merge():
                weights = [weight for _, weight in effect.models]
                parts = [decode_tensors(self.blobs[d], MANIFEST) for d, _ in effect.models]
                means = {
                    name: np.average([part[name] for part in parts], axis=0, weights=weights)
                    for name in START
                }
                data = encode_tensors({n: one.astype(np.float32) for n, one in means.items()})
                self.blobs[digest_of(data)] = data
                found = fx.Merged(effect.round, digest_of(data), {})
                self.perform(self.engine.receive(found, now))
            case fx.EvaluateHeldOut():
                self.perform(
                    self.engine.receive(fx.HeldOutEvaluated(effect.round, effect.digest), now)
                )
            case fx.CommitModel():
                assert effect.digest in self.blobs
                self.committed.append(effect.digest)
            case Emit():
                self.events.append(effect)
            case Warn():
                self.warned.append(effect)
            case fx.End():
                assert not self.end, "ended twice"
                self.end = effect.reason
            case _:
                pass

    def _learn(self, effect: fx.Learn | fx.BookOpinions | fx.BookVolunteers) -> None:
        if isinstance(effect, fx.Learn):
            assert effect.round in self.settled, "learnt before settled"
            assert effect.round not in self.feedbacks, "learnt twice"
            self.engine.run.learning.learn(effect.feedback, effect.controls)
            self.learnt.append(effect.round)
            self.feedbacks[effect.round] = effect.feedback
            return
        assert effect.round not in self.evaluated, "evaluated twice"
        early = effect.round in self.feedbacks and isinstance(effect, fx.BookOpinions)
        assert not early, "learnt before evaluated"
        self.evaluated[effect.round] = effect

    def _down(self, edge_id: str, message: m.CoordinatorToEdge) -> None:
        self.sent.append((edge_id, message))
        edge = next((edge for edge in self.edges if edge.id == edge_id), None)
        if edge is None:
            return
        for delay in self.plan(m.kind(message)):
            self.kernel.after(delay, lambda: self._deliver(edge, message))

    def _deliver(self, edge: ToyEdge, message: m.CoordinatorToEdge) -> None:
        for answer in edge.receive(message, self.kernel.now):
            self.up(edge, answer)

    def reasons(self) -> list[object]:
        """Return why the engine waited, in order."""
        return [event.fields["reason"] for event in self.events if event.name == "waiting"]


def toy_edges(edges: int = 1, agents: int = 3) -> list[ToyEdge]:
    """Return edges with agents of their own."""
    return [
        ToyEdge(
            f"edge-{e}",
            MANIFEST,
            [ToyAgent(f"agent-{e}-{a}") for a in range(agents)],
        )
        for e in range(edges)
    ]
