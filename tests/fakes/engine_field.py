"""The engine with the smallest possible disk: what it asks for is kept, for a test to look at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs

from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.core.decision import Learning
from fedagent_coordinator.core.engine import Engine
from fedagent_coordinator.core.outcomes import SILENT
from fedagent_coordinator.core.settings import Progress, Settings
from fedagent_coordinator.policies.base import Feedback
from fedagent_coordinator.policies.baselines import RandomPolicy
from fedagent_node.driver import Job
from fedagent_node.effects import (
    FinishModel,
    Input,
    ModelFinished,
    Received,
    RunJob,
    Write,
    WriteModel,
)
from fedagent_protocol import messages as m
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
from tests.fakes import toy_edge
from tests.fakes.coordinator_site import Played
from tests.fakes.toy_edge import ToyEdge

S = TypeVar("S", bound=Struct)

RUN = "ab" * 16
START: dict[str, npt.NDArray[np.generic]] = {"weight": np.zeros(500, dtype=np.float32)}
MANIFEST = Manifest.of(START)
START_BYTES = encode_tensors(START)


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


def begun(**changes: object) -> Progress:
    """Return where a new run stands."""
    base: dict[str, object] = {
        "next_round": 1,
        "rounds_done": 0,
        "spent_micro": 0,
        "model": digest_of(START_BYTES),
        "model_size": len(START_BYTES),
    }
    return Progress(**{**base, **changes})  # type: ignore[arg-type] # a test's keywords


@dataclass
class Field(Played):
    """An engine, edges, and what the books would hold."""

    edges: list[ToyEdge]
    settings: Settings = field(default_factory=settings)
    learning: Learning = field(default_factory=lambda: Learning(RandomPolicy()))
    progress: Progress = field(default_factory=begun)
    blobs: dict[str, bytes] = field(default_factory=lambda: {digest_of(START_BYTES): START_BYTES})
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    written: list[Write] = field(default_factory=list)
    reserved: dict[int, fx.Reserve] = field(default_factory=dict)
    settled: dict[int, fx.Settle] = field(default_factory=dict)
    feedbacks: dict[int, Feedback] = field(default_factory=dict)
    evaluated: dict[int, fx.BookEvaluation] = field(default_factory=dict)
    committed: list[str] = field(default_factory=list)
    at_reserve: Callable[[], object] = lambda: None
    metrics: Callable[[int], Mapping[str, float]] = lambda _round: {}

    def __post_init__(self) -> None:
        self.open()

    def toys(self) -> list[ToyEdge]:
        return self.edges

    def open(self) -> None:
        if self.driver is not None:
            return
        engine = Engine(
            settings=self.settings,
            progress=self.progress,
            learning=self.learning,
            indices=MemoryIndices(),
            paid_at=self._paid_at,
            witness=lambda _edge, _head: None,
            clock=lambda: self.kernel.now,
        )
        engine.run.models.chunk_bytes = 1024
        self.drive(engine, self)

    def _paid_at(self, round_: int, edge: str) -> frozenset[str] | None:
        settled = self.settled.get(round_)
        results = settled.edges if settled is not None else ()
        if not any(result.edge == edge and result.failed != SILENT for result in results):
            return None
        return frozenset(one.id for toy in self.edges if toy.id == edge for one in toy.agents)

    @property
    def indices(self) -> MemoryIndices:
        assert isinstance(self.engine.run.indices, MemoryIndices)
        return self.engine.run.indices

    def take(self, *events: Input) -> None:
        """Give the engine what is no message."""
        assert self.driver is not None
        self.driver.receive(*events)

    def hear(self, edge: str, message: m.EdgeToCoordinator) -> list[m.AnyMessage]:
        """Give the engine a message now; return what is sent."""
        before = len(self.sent)
        self.take(Received(edge, message, "edges", self.kernel.now))
        return [send.message for send in self.sent[before:]]

    def reasons(self) -> list[object]:
        """Return why the engine waited, in order."""
        return [fields["reason"] for fields in self.said("waiting")]

    def said(self, name: str) -> list[Mapping[str, object]]:
        """Return the events of a name."""
        return [event.fields for event in self.events if event.name == name]

    def orders(self) -> list[tuple[str, m.RoundOrder]]:
        """Return all orders, and to which edge."""
        return [(s.to, s.message) for s in self.sent if isinstance(s.message, m.RoundOrder)]

    # ------------------------------------------------------------------- the disk

    def write(self, effect: Write, now: float) -> Input | None:
        self.written.append(effect)
        match effect:
            case fx.Reserve():
                self.reserved[effect.round] = effect
                self.at_reserve()
            case fx.Settle():
                assert effect.round in self.reserved
                self.settled[effect.round] = effect
            case fx.Learn():
                self.learning.learn(effect.feedback, effect.controls)
                self.feedbacks[effect.round] = effect.feedback
            case fx.BookEvaluation():
                assert effect.round not in self.evaluated, "evaluated twice"
                self.evaluated[effect.round] = effect
            case WriteModel():
                self.parts.setdefault(effect.digest, {})[effect.offset] = effect.data
            case fx.CommitModel():
                assert effect.digest in self.blobs
                self.committed.append(effect.digest)
            case fx.End():
                return fx.RunClosed({"reason": effect.reason})
            case _:
                pass
        return None

    def job(self, effect: RunJob) -> Job:
        return Job("", partial(self._work, effect), small=True)

    def _work(self, effect: RunJob) -> Input:
        if isinstance(effect, FinishModel):
            data = b"".join(d for _, d in sorted(self.parts.pop(effect.digest).items()))
            if digest_of(data) != effect.digest:
                return ModelFinished(effect.digest, effect.size, "damaged")
            self.blobs[effect.digest] = data
            return ModelFinished(effect.digest, effect.size)
        if isinstance(effect, fx.EvaluateHeldOut):
            return fx.HeldOutEvaluated(effect.round, effect.digest, self.metrics(effect.round))
        assert isinstance(effect, fx.Merge)
        weights = [one.weight for one in effect.models]
        tensors = [decode_tensors(self.blobs[one.digest], MANIFEST) for one in effect.models]
        parts = [one["weight"].astype(np.float64) for one in tensors]
        mean = np.average(parts, axis=0, weights=weights).astype(np.float32)
        data = encode_tensors({"weight": mean})
        self.blobs[digest_of(data)] = data
        return fx.Merged(effect.round, digest_of(data), {})

    def complete(self, message: m.AnyMessage, nbytes: int) -> m.AnyMessage:
        """Put in the bytes of a model."""
        match message:
            case m.GlobalModel():
                return structs.replace(message, first=self.blobs[message.digest][:nbytes])
            case m.Chunk():
                start = m.CHUNK_BYTES * message.index
                data = self.blobs[message.digest][start : start + nbytes]
                return structs.replace(message, data=data)
            case _:
                return message

    def flush(self) -> None: ...

    def close(self) -> None: ...


def toy_edges(edges: int = 1, agents: int = 3) -> list[ToyEdge]:
    return toy_edge.toy_edges(MANIFEST, edges, agents)
