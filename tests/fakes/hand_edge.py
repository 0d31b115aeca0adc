"""An edge played by hand: what tests send to an agent, and what they read back."""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from fedagent_agent.config import AgentConfig
from fedagent_agent.core.device import PriceSettings, Readings
from fedagent_agent.core.effects import Measured
from fedagent_agent.core.vouching import Voucher
from fedagent_agent.store import TrainerRequest, open_agent
from fedagent_agent.trainer import frames as fr
from fedagent_node.data_dir import Identity, passing
from fedagent_node.driver import Driver, Job
from fedagent_node.effects import Connect, Emit, Input, LinkUp, Received, Send, Warn
from fedagent_protocol import messages as m
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.transfer import Layout
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes, task_digest

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

STATS = m.TrainStats(num_samples=7, iterations=3, seconds_per_iteration=0.1, arrivals=5, loss=0.25)
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
    return hashlib.sha256(data).hexdigest()


def order_of(
    task: TaskSpec, number: int, model: bytes, chunk_bytes: int, **fields: Any
) -> m.TrainOrder:
    times = {"deadline_ms": 10_000, "give_up_ms": 20_000}
    return m.TrainOrder(**{**_named(task, number, model, chunk_bytes), **times, **fields})


def call_of(
    task: TaskSpec, number: int, model: bytes, chunk_bytes: int, **fields: Any
) -> m.OpinionCall:
    return m.OpinionCall(**{**_named(task, number, model, chunk_bytes), **fields})


def _named(task: TaskSpec, number: int, model: bytes, chunk_bytes: int) -> dict[str, Any]:
    return {
        "run": RUN,
        "round": number,
        "task": task_digest(task_bytes(task)),
        "model": digest_of(model),
        "size": len(model),
        "chunk_bytes": chunk_bytes,
    }


def served(
    message: m.AnyMessage,
    task: TaskSpec,
    models: Mapping[str, bytes],
    chunk_bytes: int,
    run: str = RUN,
    claim: m.TaskClaim | None = None,
) -> Iterator[m.EdgeToAgent]:
    """Yield what an edge answers while it hands out task and models, these by their digest."""
    if isinstance(message, m.TaskNeed):
        yield m.TaskBody(
            run=message.run or run,
            digest=message.digest,
            body=task_bytes(task),
            recipe="digits",
            chunk_bytes=chunk_bytes,
            claim=claim,
        )
    elif isinstance(message, m.Need) and (model := models.get(message.digest)) is not None:
        layout = Layout(len(model), chunk_bytes)
        for start, stop in message.ranges:
            first, last = layout.span(start, stop)
            yield m.Chunk(
                run=run,
                round=message.round,
                digest=message.digest,
                index=start,
                data=model[first:last],
            )


class HandEdge:
    """One edge for one runtime: remembers everything that left the agent.

    Args:
        voucher: Asks what the coordinator has signed.
        settings: Of the agent.

    Attributes:
        out: All that left the agent, in order.
        warned: What it said in its log of others.
        models: Those that were called for, by digest; served whatever `serve` is given.
        pending: Bytes that the link holds unacknowledged.
        now: The clock; the test moves it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        task: TaskSpec = IDLE,
        chunk_bytes: int = CHUNK,
        checkpoint: Checkpoint = hit,
        identity: Identity | None = None,
        voucher: Voucher | None = None,
        **settings: Any,
    ) -> None:
        self.identity, self.voucher = identity, voucher
        self.directory, self.task, self.chunk_bytes = directory, task, chunk_bytes
        self.checkpoint, self.settings = checkpoint, settings
        self.pending, self.now = 0, 100.0
        self.out: list[Outward] = []
        self.warned: list[Warn] = []
        self.models: dict[str, bytes] = {}
        self.boot()

    def boot(self) -> None:
        config = AgentConfig(
            data_dir=str(self.directory),
            site=SITE,
            seed=1,
            **{"stream": "digits", "price": FREE, **self.settings},
        )
        me = AGENT if self.identity is None else self.identity.id
        self.core, self.store = open_agent(
            config,
            me,
            submit=self.out.append,
            pending=lambda _: self.pending,
            checkpoint=self.checkpoint,
            identity=self.identity,
            voucher=self.voucher,
        )
        self.driver = Driver(
            self.core,
            self.store,
            links=self,
            jobs=self,
            clock=lambda: self.now,
            emit=self.out.append,
            warn=self.warned.append,
            me=me,
        )
        self.driver.receive(LinkUp(LINK))

    def restart(self, *edges: str) -> None:
        """Kill the agent and start it again; these edges welcome it."""
        self.store.close()
        self.boot()
        self.out.clear()
        for edge in edges:
            self.join(edge=edge)

    def send(self, send: Send) -> bool:
        self.out.append(send)
        return True

    def change(self, effect: Connect) -> None:
        self.out.append(effect)

    def submit(self, job: Job) -> Input | None:
        """Agents have no jobs but the trainer's."""
        raise AssertionError(job)

    # ----------------------------------------------------------------- in

    def take(self, *events: Input) -> list[Outward]:
        before = len(self.out)
        self.driver.receive(*events)
        return self.out[before:]

    def tick(self) -> list[Outward]:
        before = len(self.out)
        self.driver.tick()
        return self.out[before:]

    def measure(self, readings: Readings) -> list[Outward]:
        return self.take(Measured(readings))

    def say(self, message: m.EdgeToAgent, *, edge: str = "") -> list[Outward]:
        """Send a message to the agent; return what it did."""
        return self.take(Received(edge or EDGE, message, LINK, self.now))

    def join(self, *, edge: str = "") -> None:
        name = edge or EDGE
        self.say(m.EdgeBeacon(edge=name), edge=name)
        self.say(m.Welcome(edge=name), edge=name)

    def order(
        self, number: int, model: bytes, *, edge: str = "", task: str = "", **fields: Any
    ) -> list[Outward]:
        order = order_of(self.task, number, model, self.chunk_bytes, **fields)
        return self.say(structs.replace(order, task=task or order.task), edge=edge)

    def call(self, number: int, model: bytes, *, edge: str = "", **fields: Any) -> list[Outward]:
        self.models[digest_of(model)] = model
        call = call_of(self.task, number, model, self.chunk_bytes, **{"until_ms": 5000, **fields})
        return self.say(call, edge=edge)

    def opened(self, job: fr.Open) -> list[Outward]:
        return self.take(fr.Opened(job=job.job))

    def refused(self, job: fr.Open, detail: str) -> list[Outward]:
        return self.failed(job, "schema", detail)

    def failed(
        self, job: fr.Open | fr.Train | fr.Evaluate, reason: str, detail: str = ""
    ) -> list[Outward]:
        return self.take(fr.Failed(job=job.job, reason=reason, detail=detail))

    def evaluate(
        self, job: fr.Evaluate, score: float = 0.5, *, samples: int = 7, epsilon: float = 0.0
    ) -> list[Outward]:
        fields: Any = {"score": score, "samples": samples, "epsilon": epsilon}
        return self.take(fr.Evaluated(job=job.job, metric="accuracy", **fields))

    def serve(
        self,
        outward: list[Outward],
        model: bytes,
        *,
        run: str = RUN,
        edge: str = "",
        task: TaskSpec | None = None,
        claim: m.TaskClaim | None = None,
        lacks: tuple[str, ...] = (),
    ) -> None:
        """Answer what the agent asks for, or asks one edge for, until it asks no more.

        Models that it `lacks` are not served.
        """
        todo = list(outward)
        while todo:
            effect = todo.pop(0)
            if isinstance(effect, fr.Open):
                todo += self.opened(effect)
            elif isinstance(effect, Send) and effect.to == (edge or effect.to):
                models = {getattr(effect.message, "digest", ""): model, **self.models}
                models = {digest: one for digest, one in models.items() if digest not in lacks}
                told = (task or self.task, models, self.chunk_bytes, run, claim)
                for answer in served(effect.message, *told):
                    todo += self.say(answer, edge=edge)

    def round(self, number: int, model: bytes) -> m.UpdateOffer:
        self.serve(self.order(number, model), model)
        return self.said(m.UpdateOffer)[-1]

    def train(
        self, job: fr.Train, body: bytes, stats: m.TrainStats = STATS, *, train_s: float = 0.0
    ) -> list[Outward]:
        """Be the trainer: write an update."""
        passing(job.out).write_bytes(body)
        trained = fr.Trained(
            job=job.job,
            digest=digest_of(body),
            size=len(body),
            offset=42,
            mark="of what is before it",
            train_s=train_s,
            stats=stats,
        )
        return self.take(trained)

    def receipt(
        self, offer: m.UpdateOffer, status: m.ReceiptStatus = m.ReceiptStatus.ACCEPTED
    ) -> list[Outward]:
        return self.say(
            m.Receipt(run=offer.run, round=offer.round, digest=offer.digest, status=status)
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
        effects = self.out if outward is None else outward
        messages = [effect.message for effect in effects if isinstance(effect, Send)]
        return [message for message in messages if isinstance(message, kind)]

    def jobs(self, kind: type[M], outward: list[Outward] | None = None) -> list[M]:
        return [e for e in (self.out if outward is None else outward) if isinstance(e, kind)]

    def events(self, name: str) -> list[dict[str, object]]:
        return [dict(e.fields) for e in self.out if isinstance(e, Emit) and e.name == name]


def joined(folder: Path, *others: str, **fields: Any) -> HandEdge:
    """Return an agent that has a session with `EDGE`, and with others."""
    edge = HandEdge(folder, **fields)
    for name in (EDGE, *others):
        edge.join(edge=name)
    return edge
