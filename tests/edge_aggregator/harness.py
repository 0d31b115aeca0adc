"""One edge runtime on a real directory, with agents and a coordinator played by hand.

Time is simulated. Messages may be lost, repeated or delayed; the runtime may be
dropped at any checkpoint and opened again on its directory.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from fedagent_edge.config import EdgeConfig
from fedagent_edge.core.edge import EdgeCore
from fedagent_edge.core.effects import COORDINATOR, LAN, WAN
from fedagent_edge.store import EdgeStore, open_edge
from fedagent_node.driver import Driver, Job
from fedagent_node.effects import (
    EVERYBODY,
    Connect,
    Emit,
    Input,
    LinkUp,
    Received,
    Send,
    TakeRevocations,
    Warn,
)
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_protocol.transfer import Layout, Receiver, Sender

RUN = "0" * 31 + "1"
BODY = b"task"
TASK = digest_of(BODY)
CONTEXT_S = 15.0
DELAY_S = 0.01


class Killed(BaseException):
    """The process ended at a checkpoint."""


def model_tensors(size: int = 64) -> dict[str, np.ndarray]:
    return {
        "bias": np.arange(3, dtype=np.float32),
        "weight": np.linspace(-1, 1, size, dtype=np.float32).reshape(-1, 4),
    }


def delta(agent: str, size: int = 64) -> dict[str, np.ndarray]:
    """Return an update that is the same whenever it is computed."""
    rng = np.random.default_rng(list(agent.encode()))
    base = model_tensors(size)
    return {k: rng.normal(size=v.shape).astype(np.float32) for k, v in base.items()}


@dataclass
class ToyAgent:
    """Trains in `work_s`, keeps its update until a receipt, offers it again until then."""

    id: str
    work_s: float = 0.1
    samples: int = 10
    chunk_bytes: int = 16 * 1024
    size: int = 64
    tensors: dict[str, np.ndarray] | None = None
    body: bytes | None = None
    decline: m.DeclineReason | None = None
    silent: bool = False
    overrides: dict[str, object] = field(default_factory=dict)
    orders: list[m.TrainOrder] = field(default_factory=list)
    receipts: list[m.Receipt] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    heard: list[m.AnyMessage] = field(default_factory=list)
    offer: m.UpdateOffer | None = None
    models: set[str] = field(default_factory=set)
    _work: m.TrainOrder | None = None
    _pull: Receiver | None = None
    _parts: dict[int, bytes] = field(default_factory=dict)
    _sender: Sender | None = None
    _hellos: int = 0

    def hello(self, f: "Field") -> None:
        f.to_edge(self.id, m.Hello())
        self._hellos += 1
        self._report(f, 1, self._hellos)

    def _report(self, f: "Field", seq: int, hellos: int) -> None:
        """Report a context now and then, as agents do."""
        if hellos != self._hellos or (self.silent and seq > 1):
            return
        report = m.ContextReport(seq=seq, available=True, price=5, features={"compute": 1.0})
        f.to_edge(self.id, report)
        f.later(CONTEXT_S, lambda: self._report(f, seq + 1, hellos))

    def receive(self, message: m.AnyMessage, f: "Field") -> None:
        if self.silent:
            return
        self.heard.append(message)
        match message:
            case m.TrainOrder():
                self._ordered(message, f)
            case m.Chunk():
                self._chunk(message, f)
            case m.Need():
                self._need(message, f)
            case m.Receipt():
                self._receipt(message)
            case m.RoundClosed():
                self.closed.append(message.round)
            case m.Probe():
                f.to_edge(self.id, m.ProbeReply(nonce=message.nonce))
            case _:
                pass

    def _receipt(self, receipt: m.Receipt) -> None:
        self.receipts.append(receipt)
        if self.offer is not None and receipt.digest == self.offer.digest:
            self.offer = None

    def _ordered(self, order: m.TrainOrder, f: "Field") -> None:
        if order.receipt is not None:
            self._receipt(order.receipt)
        again = bool(self.orders) and self.orders[-1].round == order.round
        self.orders.append(order)
        if self.decline is not None:
            f.to_edge(self.id, m.Decline(run=order.run, round=order.round, reason=self.decline))
        elif again and self.offer is not None:
            f.to_edge(self.id, self.offer)
        elif not again or order.model not in self.models:
            self._fetch(order, f)

    def _fetch(self, work: m.TrainOrder, f: "Field") -> None:
        before, self._work = self._work, work
        if work.model in self.models:
            f.later(self.work_s, lambda: self._done(work, f))
        elif before is None or before.model != work.model:
            self._pull, self._parts = Receiver(Layout(work.size, work.chunk_bytes)), {}
            self._ask(work.model, f)
        elif self._pull is not None:
            self._pull.forget_credit()

    def _ask(self, model: str, f: "Field") -> None:
        work = self._work
        if work is None or self._pull is None or work.model != model or self._pull.complete:
            return
        if ranges := self._pull.ask(f.now):
            need = m.Need(run=work.run, round=work.round, digest=model, ranges=ranges)
            f.to_edge(self.id, need)
        f.later(0.3, lambda: self._ask(model, f))

    def _chunk(self, chunk: m.Chunk, f: "Field") -> None:
        work = self._work
        if work is None or self._pull is None or chunk.digest != work.model:
            return
        if not self._pull.accept(chunk.index, len(chunk.data), f.now):
            return
        self._parts[chunk.index] = chunk.data
        if not self._pull.complete:
            self._ask(work.model, f)
            return
        assert digest_of(b"".join(self._parts[i] for i in sorted(self._parts))) == work.model
        self.models.add(work.model)
        f.later(self.work_s, lambda: self._done(work, f))

    def _done(self, work: m.TrainOrder, f: "Field") -> None:
        if self.orders[-1].round == work.round and self.offer is None:
            self.make_offer(work)
            self._repeat(f)

    def make_offer(self, order: m.TrainOrder) -> m.UpdateOffer:
        self.body = self.body or encode_tensors(self.tensors or delta(self.id, self.size))
        stats = {"num_samples": self.samples, "dt_ms": 1, "lc_ms": round(self.work_s * 1000)}
        values: dict[str, object] = {
            "run": order.run,
            "round": order.round,
            "digest": digest_of(self.body),
            "size": len(self.body),
            "chunk_bytes": self.chunk_bytes,
            "base": order.model,
            "task": order.task,
            "first": self.body[: self.chunk_bytes] if order.credit else b"",
            "stats": m.TrainStats(**stats),  # type: ignore[arg-type]  # whole numbers
            **self.overrides,
        }
        self.offer = m.UpdateOffer(**values)  # type: ignore[arg-type]  # facts are a test's
        self._sender = Sender(Layout(len(self.body), self.chunk_bytes))
        return self.offer

    def _repeat(self, f: "Field") -> None:
        if self.offer is not None:
            f.to_edge(self.id, self.offer)
            f.later(2.0, lambda: self._repeat(f))

    def _need(self, need: m.Need, f: "Field") -> None:
        if self.offer is None or self._sender is None or need.digest != self.offer.digest:
            return
        assert self.body is not None
        self._sender.authorise(need.ranges, link_idle=True)
        while (found := self._sender.next()) is not None:
            index, nbytes = found
            start = index * self.chunk_bytes
            data = self.body[start : start + nbytes]
            run, number = self.offer.run, self.offer.round
            chunk = m.Chunk(run=run, round=number, digest=need.digest, index=index, data=data)
            f.to_edge(self.id, chunk)


@dataclass
class Field:
    """The edge, its surroundings and the clock."""

    directory: Path
    agents: dict[str, ToyAgent] = field(default_factory=dict)
    now: float = 100.0
    boot: str = "boot-1"
    body: bytes = BODY
    size: int = 64
    chunk_bytes: int = 256 * 1024
    credit_bytes: int = 8 << 20
    lossy: random.Random | None = None
    kill_at: str = ""
    kill_nth: int = 1
    kills: int = 0
    starts: int = 0
    reports: list[m.RoundReport] = field(default_factory=list)
    to_coordinator: list[m.EdgeToCoordinator] = field(default_factory=list)
    events: list[Emit] = field(default_factory=list)
    notes: list[Warn] = field(default_factory=list)
    receipt_reports: bool = True
    job_delay_s: float = 0.0
    edge: Driver = field(init=False)
    core: EdgeCore = field(init=False)
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0
    _job_free_at: float = 0.0

    def __post_init__(self) -> None:
        self.model = encode_tensors(model_tensors(self.size))
        self.digest = digest_of(self.model)
        self.open()

    # ---------------------------------------------------------------- the edge

    def open(self) -> None:
        """Start the edge's process."""
        self.starts += 1
        config = EdgeConfig(
            data_dir=str(self.directory),
            chunk_bytes=self.chunk_bytes,
            credit_bytes=self.credit_bytes,
        )
        me = m.EdgeHello(edge="edge", epoch=f"{self.starts:032x}")
        self.directory.mkdir(exist_ok=True)
        self.core, store = open_edge(
            config, me, now=self.now, boot=self.boot, checkpoint=self._checkpoint
        )
        self.edge = Driver(
            self.core,
            store,
            links=self,
            jobs=self,
            clock=lambda: self.now,
            emit=self.events.append,
            warn=self.notes.append,
            me="edge",
        )

    def model_bytes(self, digest: str) -> bytes:
        """Return a model that the edge holds."""
        return cast("EdgeStore", self.edge.store)._models.get(digest)

    def _checkpoint(self, name: str) -> None:
        if name == self.kill_at:
            self.kill_nth -= 1
            if self.kill_nth == 0:
                self.kill_at = ""
                raise Killed

    def restart(self) -> None:
        """Kill the edge: what was on its way to it is lost; everybody reconnects."""
        self.kills += 1
        self.open()
        self.welcome()
        self._try(lambda: self.edge.receive(LinkUp(LAN)))
        for agent in self.agents.values():
            if not agent.silent:
                agent.hello(self)
                if agent.offer is not None:
                    self.to_edge(agent.id, agent.offer)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Killed:
            self.restart()

    def send(self, send: Send) -> bool:
        to, message = send.to, send.message
        if to == COORDINATOR:
            self._up(cast("m.EdgeToCoordinator", message))
        elif to != EVERYBODY:
            self._down(to, cast("m.EdgeToAgent", message))
        return True

    def change(self, effect: Connect) -> None:
        assert isinstance(effect, TakeRevocations)

    def submit(self, job: Job) -> Input | None:
        if not self.job_delay_s:
            return job.work()
        starts = self.starts
        self._job_free_at = max(self._job_free_at, self.now) + self.job_delay_s

        def run() -> None:
            if starts == self.starts:
                self._try(lambda: self.edge.receive(job.work()))

        self.at(self._job_free_at, run)
        return None

    # ---------------------------------------------------------------- messages

    def to_edge(self, agent: str, message: m.AnyMessage) -> None:
        def arrive() -> None:
            self._try(lambda: self.edge.receive(Received(agent, message, LAN, self.now)))

        self._carry(arrive)

    def _down(self, agent: str, message: m.EdgeToAgent) -> None:
        if agent in self.agents:
            self._carry(lambda: self.agents[agent].receive(message, self))

    def _carry(self, arrive: Callable[[], None]) -> None:
        """Deliver, or lose, repeat and delay."""
        if self.lossy is None:
            self.later(DELAY_S, arrive)
            return
        for _ in range(self.lossy.choices((0, 1, 2), (1, 8, 2))[0]):
            self.later(self.lossy.uniform(0.001, 0.3), arrive)

    def _up(self, message: m.EdgeToCoordinator) -> None:
        self.to_coordinator.append(message)
        if isinstance(message, m.RoundReport):
            self.reports.append(message)
            if self.receipt_reports:
                receipt = m.ReportReceipt(run=message.run, round=message.round)
                self.later(DELAY_S, lambda: self.coordinator(receipt))

    def coordinator(self, message: m.AnyMessage, sender: str = "") -> None:
        self._try(lambda: self.edge.receive(Received(sender, message, WAN, self.now)))

    def welcome(self, run: str = RUN) -> None:
        self.coordinator(
            m.EdgeWelcome(run=run, coordinator="coord", task=digest_of(self.body), body=self.body)
        )

    def give_model(self, run: str = RUN) -> None:
        first = self.model[: self.chunk_bytes]
        size = len(self.model)
        offer = m.GlobalModel(
            run=run, digest=self.digest, size=size, chunk_bytes=self.chunk_bytes, first=first
        )
        self.coordinator(offer)
        layout = Layout(size, self.chunk_bytes)
        for index in range(1, layout.count):
            start, stop = layout.span(index)
            data = self.model[start:stop]
            self.coordinator(m.Chunk(run=run, digest=self.digest, index=index, data=data))
        self.run_for(0.1 + 4 * self.job_delay_s)
        assert self.core.memory.model == self.digest

    def order(self, number: int = 1, **facts: object) -> None:
        values: dict[str, object] = {
            "run": RUN,
            "round": number,
            "task": digest_of(self.body),
            "assignments": tuple(m.Assignment(agent=a) for a in self.agents),
            "deadline_ms": 5000,
            "max_wait_ms": 20_000,
            "min_updates": 1,
            **facts,
        }
        self.coordinator(m.RoundOrder(**values))  # type: ignore[arg-type]  # a test's own facts

    def ready(self) -> "Field":
        """Welcome the edge, give it the model, let the agents join."""
        self.welcome()
        self.give_model()
        for agent in self.agents.values():
            agent.hello(self)
        self.run_for(1.0)
        return self

    # -------------------------------------------------------------------- time

    def at(self, when: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, call))

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.at(self.now + delay_s, call)

    def run_for(self, seconds: float) -> None:
        """Let time go on."""
        end = self.now + seconds
        while True:
            due = self.core.next_due()
            head = self._queue[0][0] if self._queue else float("inf")
            if min(due, head) > end:
                break
            if head <= due:
                self.now = max(self.now, head)
                heapq.heappop(self._queue)[2]()
            else:
                self.now = max(self.now, due)
                self._try(self.edge.tick)
        self.now = end

    def run_until_report(self, number: int = 1, max_s: float = 60.0) -> m.RoundReport:
        end = self.now + max_s
        while self.now < end:
            found = [r for r in self.reports if r.round == number]
            if found:
                self.run_for(0.1)
                return found[0]
            self.run_for(0.05)
        raise AssertionError(f"no report; counters {dict(self.core.counters)}")


def field_of(directory: Path, count: int = 3, **facts: object) -> Field:
    """Return a field with agents a0, a1, ... that has joined and holds the model."""
    size = int(str(facts.get("size", 64)))
    agents = {f"a{i}": ToyAgent(f"a{i}", size=size) for i in range(count)}
    return Field(directory, agents, **facts).ready()  # type: ignore[arg-type]  # a test's facts


def expected_mean(size: int, weights: dict[str, float]) -> dict[str, np.ndarray]:
    """Return the model after a round, computed in one batch."""
    total = sum(weights.values())
    base = model_tensors(size)
    return {
        name: (
            array.astype(np.float64)
            + sum(w * delta(a, size)[name].astype(np.float64) for a, w in weights.items()) / total
        ).astype(np.float32)
        for name, array in base.items()
    }
