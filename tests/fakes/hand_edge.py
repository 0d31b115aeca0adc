"""An edge played by hand: what tests send to an agent, and what they read back."""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from fedagent_agent.config import AgentConfig
from fedagent_agent.core.device import PriceSettings, Readings
from fedagent_agent.core.effects import Measured, Subscribed, SubscribeModel
from fedagent_agent.core.opinions import NO_LIMITS, PrivacySettings
from fedagent_agent.store import TrainerRequest, open_agent
from fedagent_agent.trainer.frames import (
    Evaluate,
    Evaluated,
    Failed,
    Open,
    Opened,
    Refused,
    Reply,
    Train,
    Trained,
)
from fedagent_node.driver import Driver, Job
from fedagent_node.effects import Connect, Emit, Input, LinkUp, Received, Send
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import (
    AnyMessage,
    Chunk,
    EdgeBeacon,
    EdgeToAgent,
    Need,
    OpinionCall,
    OpinionMode,
    Receipt,
    ReceiptStatus,
    TaskBody,
    TaskNeed,
    TrainOrder,
    TrainStats,
    UpdateOffer,
    Welcome,
)
from fedagent_protocol.transfer import Layout
from fedagent_task.recipe import task_bytes, task_digest
from fedagent_task.spec import LearnerSpec, ModelSpec, TaskSpec

AGENT = "a" * 32
EDGE = "e" * 32
OTHER = "f" * 32
LINK = "127.0.0.1:1883"
SITE = "here"
RUN = "1" * 32
CHUNK = 256 * 1024

M = TypeVar("M")
Outward = Send | Connect | Emit | TrainerRequest
"""What leaves the agent and its disk."""

STATS = TrainStats(num_samples=7, iterations=3, seconds_per_iteration=0.1, arrivals=5, loss=0.25)
FREE = PriceSettings(base=0.0, per_compute=0.0)
IDLE = TaskSpec(
    model=ModelSpec(kind="softmax", features=4, classes=2), learner=LearnerSpec(name="none")
)
REAL = TaskSpec(model=ModelSpec(kind="softmax", features=64, classes=10))


def model_of(size: int, mark: int = 0) -> bytes:
    """Return a safetensors model of one float32 tensor, of about `size` bytes."""
    count = max(1, (size - 80) // 4)
    entry = {"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}
    head = json.dumps(entry).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + struct.pack("<f", mark) * count


def digest_of(data: bytes) -> str:
    """Return the name of content."""
    return hashlib.sha256(data).hexdigest()


def order_of(
    task: TaskSpec,
    number: int,
    model: bytes,
    chunk_bytes: int,
    *,
    run: str = RUN,
    **fields: int,
) -> TrainOrder:
    """Return the order of a round."""
    return TrainOrder(
        run=run,
        round=number,
        task=task_digest(task_bytes(task)),
        model=digest_of(model),
        size=len(model),
        chunk_bytes=chunk_bytes,
        deadline_ms=10_000,
        give_up_ms=fields.pop("give_up_ms", 20_000),
        **fields,
    )


def call_of(
    task: TaskSpec, number: int, model: bytes, chunk_bytes: int, *, run: str = RUN
) -> OpinionCall:
    """Return the call for opinions of a model."""
    return OpinionCall(
        run=run,
        round=number,
        task=task_digest(task_bytes(task)),
        model=digest_of(model),
        size=len(model),
        chunk_bytes=chunk_bytes,
        until_ms=60_000,
    )


def served(
    message: AnyMessage,
    task: TaskSpec,
    models: Mapping[str, bytes],
    chunk_bytes: int,
    run: str = RUN,
) -> Iterator[EdgeToAgent]:
    """Yield what an edge answers while it hands out task and models, these by their digest."""
    if isinstance(message, TaskNeed):
        yield TaskBody(run=run, digest=message.digest, body=task_bytes(task), recipe="digits")
    elif isinstance(message, Need) and (model := models.get(message.digest)) is not None:
        layout = Layout(len(model), chunk_bytes)
        for index in (i for start, stop in message.ranges for i in range(start, stop)):
            first, last = layout.span(index)
            yield Chunk(
                run=run,
                round=message.round,
                digest=message.digest,
                index=index,
                data=model[first:last],
            )


@dataclass
class HandEdge:
    """One edge for one runtime: remembers everything that left the agent.

    Attributes:
        out: All that left the agent, in order.
        models: Those that were called for, by digest; served whatever `serve` is given.
        now: The clock; the test moves it.
    """

    directory: Path
    edge: str = EDGE
    link: str = LINK
    price: PriceSettings = FREE
    stream: str = "digits"
    slow_s: float = 0.0
    load_limit_s: float = 0.0
    name: str = ""
    privacy: PrivacySettings = NO_LIMITS
    chunk_bytes: int = CHUNK
    task: TaskSpec = IDLE
    checkpoint: Checkpoint = hit
    pending: int = 0
    now: float = 100.0
    out: list[Outward] = field(default_factory=list)
    models: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        """Start (again) on the directory."""
        config = AgentConfig(
            data_dir=str(self.directory),
            site=SITE,
            stream=self.stream,
            seed=1,
            price=self.price,
            slow_s=self.slow_s,
            load_limit_s=self.load_limit_s,
            name=self.name,
            privacy=self.privacy,
        )
        self.core, self.store = open_agent(
            config,
            AGENT,
            submit=self.out.append,
            pending=lambda _: self.pending,
            checkpoint=self.checkpoint,
        )
        self.driver = Driver(
            self.core,
            self.store,
            links=self,
            jobs=self,
            clock=lambda: self.now,
            emit=self.out.append,
            warn=lambda _: None,
            me=AGENT,
        )
        self.driver.receive(LinkUp(self.link))

    def restart(self) -> None:
        """Kill the agent and start it again."""
        self.store.abandon()
        self.boot()
        self.out.clear()

    def send(self, send: Send) -> bool:
        """Remember a message that left the agent."""
        self.out.append(send)
        return True

    def change(self, effect: Connect) -> None:
        """Remember a change of links or subscriptions."""
        self.out.append(effect)

    def submit(self, job: Job) -> Input | None:
        """Agents have no jobs but the trainer's."""
        raise AssertionError(job)

    # ----------------------------------------------------------------- in

    def take(self, *events: Input) -> list[Outward]:
        """Give the agent inputs; return what it did."""
        before = len(self.out)
        self.driver.receive(*events)
        return self.out[before:]

    def tick(self) -> list[Outward]:
        """Let the agent do what is due; return that."""
        before = len(self.out)
        self.driver.tick()
        return self.out[before:]

    def measure(self, readings: Readings) -> list[Outward]:
        """Give the agent readings of its device."""
        return self.take(Measured(readings))

    def say(self, message: EdgeToAgent, *, edge: str = "") -> list[Outward]:
        """Send a message to the agent; return what it did."""
        return self.take(Received(edge or self.edge, message, self.link, self.now))

    def join(self, *, edge: str = "") -> None:
        """Open the session."""
        name = edge or self.edge
        self.say(EdgeBeacon(edge=name), edge=name)
        self.say(Welcome(edge=name), edge=name)

    def order(
        self,
        number: int,
        model: bytes,
        *,
        run: str = RUN,
        edge: str = "",
        task: str = "",
        **fields: int,
    ) -> list[Outward]:
        """Order a round."""
        order = order_of(self.task, number, model, self.chunk_bytes, run=run, **fields)
        if task:
            order = structs.replace(order, task=task)
        return self.say(order, edge=edge)

    def call(
        self,
        number: int,
        model: bytes,
        *,
        run: str = RUN,
        edge: str = "",
        mode: OpinionMode = OpinionMode.REPORT,
        until_ms: int = 5000,
    ) -> list[Outward]:
        """Ask for an opinion."""
        self.models[digest_of(model)] = model
        call = call_of(self.task, number, model, self.chunk_bytes, run=run)
        call = structs.replace(call, until_ms=until_ms, mode=mode)
        return self.say(call, edge=edge)

    def replied(self, reply: Reply) -> list[Outward]:
        """Be the trainer: answer a job."""
        return self.take(reply)

    def opened(self, job: Open) -> list[Outward]:
        """Be the trainer: the stream fits."""
        return self.replied(Opened(job=job.job))

    def refused(self, job: Open, detail: str) -> list[Outward]:
        """Be the trainer: the stream does not fit."""
        return self.replied(Refused(job=job.job, key="model.features", detail=detail))

    def failed(self, job: Open | Train | Evaluate, reason: str, detail: str = "") -> list[Outward]:
        """Be the trainer: there is no result."""
        return self.replied(Failed(job=job.job, reason=reason, detail=detail))

    def evaluate(
        self, job: Evaluate, score: float = 0.5, *, samples: int = 7, epsilon: float = 0.0
    ) -> list[Outward]:
        """Be the trainer: score the model."""
        metric = "accuracy"
        result = Evaluated(
            job=job.job, score=score, samples=samples, metric=metric, epsilon=epsilon
        )
        return self.replied(result)

    def serve(self, outward: list[Outward], model: bytes, *, run: str = RUN) -> None:
        """Answer what the agent asks for, until it asks no more."""
        todo = list(outward)
        while todo:
            effect = todo.pop(0)
            if isinstance(effect, SubscribeModel):
                todo += self.take(Subscribed(effect.edge, effect.digest))
            elif isinstance(effect, Open):
                todo += self.opened(effect)
            elif isinstance(effect, Send):
                models = {getattr(effect.message, "digest", ""): model, **self.models}
                for answer in served(effect.message, self.task, models, self.chunk_bytes, run):
                    todo += self.say(answer)

    def round(self, number: int, model: bytes) -> UpdateOffer:
        """Order a round and see it through to the offer."""
        self.serve(self.order(number, model), model)
        return self.said(UpdateOffer)[-1]

    def train(
        self, job: Train, body: bytes, stats: TrainStats = STATS, *, train_s: float = 0.0
    ) -> list[Outward]:
        """Be the trainer: write an update."""
        Path(job.out).write_bytes(body)
        trained = Trained(
            job=job.job,
            digest=digest_of(body),
            size=len(body),
            offset=42,
            train_s=train_s,
            stats=stats,
        )
        return self.replied(trained)

    def receipt(
        self, offer: UpdateOffer, status: ReceiptStatus = ReceiptStatus.ACCEPTED
    ) -> list[Outward]:
        """Receipt an update."""
        return self.say(
            Receipt(run=offer.run, round=offer.round, digest=offer.digest, status=status)
        )

    def later(self, seconds: float, *, step: float = 0.05) -> list[Outward]:
        """Let time pass, ticking when the agent wants it; no beacons are sent."""
        until = self.now + seconds
        outward: list[Outward] = []
        while True:
            due = self.driver.next_due()
            if due is None or due > until:
                self.now = until
                return outward
            self.now = max(self.now + step / 1000, due)
            outward += self.tick()

    # ---------------------------------------------------------------- out

    def said(self, kind: type[M], outward: list[Outward] | None = None) -> list[M]:
        """Return the messages of a kind that left the agent."""
        effects = self.out if outward is None else outward
        messages = [effect.message for effect in effects if isinstance(effect, Send)]
        return [message for message in messages if isinstance(message, kind)]

    def jobs(self, kind: type[M], outward: list[Outward] | None = None) -> list[M]:
        """Return the outward effects of a kind."""
        return [e for e in (self.out if outward is None else outward) if isinstance(e, kind)]

    def events(self, name: str) -> list[dict[str, object]]:
        """Return the fields of a kind of event."""
        return [dict(e.fields) for e in self.out if isinstance(e, Emit) and e.name == name]
