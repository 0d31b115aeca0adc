"""An edge small enough to read: it speaks the whole protocol and trains in no time."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_protocol import messages as m
from fedagent_protocol.columns import Columns, pack
from fedagent_protocol.tensors import Manifest, decode_tensors, digest_of, encode_tensors
from fedagent_protocol.transfer import PIECE_BYTES, Layout, Receiver, Sender
from fedagent_task.moments import Moments


def arrived(agent: str, *, tau_ms: int = 50, ut_ms: int = 0, **stats: float) -> m.Outcome:
    """Return a valid update in time, of ten samples."""
    return m.Outcome(
        agent=agent,
        status=m.OutcomeStatus.ARRIVED,
        in_time=True,
        used=True,
        valid=True,
        weight=10.0,
        tau_ms=tau_ms,
        ut_ms=ut_ms,
        stats=m.TrainStats(**{"num_samples": 10, **stats}),  # type: ignore[arg-type] # a test's
    )


def declined(agent: str, reason: str = "") -> m.Outcome:
    """Return the outcome of an agent that declined at once."""
    status = m.OutcomeStatus.DECLINED
    return m.Outcome(agent=agent, status=status, censored=True, tau_ms=1, reason=reason)


@dataclass
class ToyAgent:
    id: str
    price: int = 1_000_000
    available: bool = True
    features: dict[str, float] = field(default_factory=lambda: {"compute": 1.0})
    outcome: m.Outcome | None = None
    name: str = ""
    volunteers: bool = True
    x: npt.NDArray[np.float32] | None = None

    def opinion(self, model: str) -> float:
        """A score that model and agent decide."""
        seed = hashlib.sha256(f"{model} {self.id}".encode()).digest()
        return int.from_bytes(seed[:4], "big") / 2**32


@dataclass
class ToyEdge:
    """Answers the coordinator; `inbox` in, messages out."""

    id: str
    manifest: Manifest
    agents: list[ToyAgent]
    epoch: str = "0" * 32
    chunk_bytes: int = 1024
    run: str = ""
    model: bytes = b""
    welcomed: bool = False
    mute: bool = False
    rent: int = 0
    timing_ms: dict[str, float] = field(default_factory=dict)
    orders: list[int] = field(default_factory=list)
    last: m.RoundReport | None = None
    pending: m.RoundReport | None = None
    pull: Receiver | None = None
    pull_digest: str = ""
    parts: dict[int, bytes] = field(default_factory=dict)
    calls: list[m.OpinionOpen] = field(default_factory=list)
    opinion_receipts: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    deaf: bool = False
    asked: m.OpinionOpen | None = None
    unheard: m.Opinions | m.EdgeMoments | None = None
    moments: bytes | None = None
    tasks: list[bytes] = field(default_factory=list)
    head: m.LedgerHead | None = None
    _said_at: float = 0.0
    _answer_at: float = 0.0
    _report_at: float = 0.0
    _senders: dict[str, Sender] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest_of(self.model) if self.model else ""

    def restart(self, *, forget_model: bool = False) -> None:
        """Come back as a new process that kept its model and its last report."""
        self.epoch = f"{int(self.epoch, 16) + 1:032x}"
        self.welcomed = False
        self.pull = None
        self._senders.clear()
        if forget_model:
            self.model = b""
            self.last = self.pending = None

    def hello(self) -> m.EdgeHello:
        name = f"name of {self.id}"
        return m.EdgeHello(
            edge=self.id, epoch=self.epoch, name=name, rent=self.rent, head=self.head
        )

    def tick(self, now: float) -> list[m.EdgeToCoordinator]:
        """Say what is due: hello or status, an unreceipted report, a re-request."""
        out: list[m.EdgeToCoordinator] = []
        if now - self._said_at >= (1.0 if not self.welcomed else 5.0):
            self._said_at = now
            out.append(self.status() if self.welcomed else self.hello())
        if self.pending is not None and now - self._report_at >= 1.0:
            self._report_at = now
            out.append(self.pending)
        if self.unheard is not None and now - self._answer_at >= 1.0:
            self._answer_at = now
            out.append(self.unheard)
        if self.pull is not None:
            out += self._need(now)
        return [] if self.mute else out

    def status(self) -> m.EdgeStatus:
        return m.EdgeStatus(
            run=self.run,
            epoch=self.epoch,
            agents=len(self.agents),
            model=self.digest,
            rent=self.rent,
            devices=tuple(m.DeviceNote(agent=a.id, name=a.name) for a in self.agents),
        )

    def receive(self, message: m.CoordinatorToEdge, now: float) -> list[m.EdgeToCoordinator]:
        if self.mute:
            return []
        if isinstance(message, m.EdgeWelcome | m.ReportReceipt):
            self.head = message.head or self.head
        match message:
            case m.EdgeWelcome():
                if message.run != self.run:
                    self.run, self.model, self.last, self.pending = message.run, b"", None, None
                self.welcomed = True
                self.tasks.append(message.body)
            case m.RoundOpen() if message.run == self.run:
                return [self.columns(message)]
            case m.RoundOrder() if message.run == self.run:
                return self._order(message, now)
            case m.ReportReceipt() if message.run == self.run:
                if self.pending is not None and self.pending.round == message.round:
                    self.pending = None
            case m.GlobalModel() if message.run == self.run:
                return self._offered(message, now)
            case m.Chunk():
                return self._chunk(message, now)
            case m.Need():
                return self._serve(message)
            case m.OpinionOpen() if message.run == self.run:
                self.calls.append(message)
                self.asked = message
                return self._answer(now)
            case m.OpinionsReceipt() if message.run == self.run:
                self.opinion_receipts.append(message.round)
                self.unheard = None
            case m.OpinionClose() if message.run == self.run:
                self.closed.append(message.round)
                self.unheard = None
            case _:
                pass
        return []

    def _answer(self, now: float) -> list[m.EdgeToCoordinator]:
        call = self.asked
        if call is None or self.deaf or call.model != self.digest:
            return []
        self.asked = None
        return [self.answer(call, now)]

    def add_up(self, call: m.OpinionOpen) -> m.EdgeMoments:
        """What its agents' samples add up to; `moments` where a test says what instead."""
        found = [Moments.of(agent.x) for agent in self.agents if agent.x is not None]
        total = sum(found[1:], found[0]).encode() if found else b""
        silent = len(self.agents) - len(found)
        return m.EdgeMoments(
            run=self.run,
            round=call.round,
            epoch=self.epoch,
            model=call.model,
            moments=total if self.moments is None else self.moments,
            agents=len(found),
            asked=len(self.agents),
            reasons={"none": silent} if silent else {},
        )

    def answer(self, call: m.OpinionOpen, now: float) -> m.Opinions | m.Volunteers | m.EdgeMoments:
        """All its agents' opinions, those that volunteer, or what their samples add up to."""
        if call.mode is m.OpinionMode.MOMENTS:
            self.unheard, self._answer_at = self.add_up(call), now
            return self.unheard
        known = call.known if call.epoch == self.epoch else 0
        new_ids = tuple(agent.id for agent in self.agents[known:])
        if call.mode is m.OpinionMode.PEERS:
            rows = [row for row, agent in enumerate(self.agents) if agent.volunteers]
            return m.Volunteers(
                run=self.run,
                round=call.round,
                epoch=self.epoch,
                known=known,
                new_ids=new_ids,
                session=np.array(rows, dtype="<i4").tobytes(),
                asked=len(self.agents),
            )
        count = len(self.agents)
        self.unheard = m.Opinions(
            run=self.run,
            round=call.round,
            epoch=self.epoch,
            model=call.model,
            known=known,
            new_ids=new_ids,
            session=np.arange(count, dtype="<i4").tobytes(),
            score=np.array([a.opinion(call.model) for a in self.agents], dtype="<f4").tobytes(),
            samples=np.full(count, 20, dtype="<i8").tobytes(),
            metric="accuracy",
            asked=count,
        )
        self._answer_at = now
        return self.unheard

    def columns(self, message: m.RoundOpen) -> m.RoundColumns:
        known = message.known if message.epoch == self.epoch else 0
        names = tuple(sorted({name for agent in self.agents for name in agent.features}))
        nan = float("nan")
        rows = [[agent.features.get(name, nan) for name in names] for agent in self.agents]
        packed = pack(
            Columns(
                features=names,
                session=np.arange(len(self.agents), dtype=np.int32),
                price=np.array([agent.price for agent in self.agents], dtype=np.int64),
                context_seq=np.ones(len(self.agents), dtype=np.int64),
                age_ms=np.full(len(self.agents), 100, dtype=np.int32),
                available=np.array([agent.available for agent in self.agents], dtype=np.bool_),
                values=np.array(rows, dtype=np.float32).reshape(len(rows), len(names)),
            )
        )
        return m.RoundColumns(
            run=self.run,
            round=message.round,
            epoch=self.epoch,
            known=known,
            new_ids=tuple(agent.id for agent in self.agents[known:]),
            features=names,
            model=self.digest,
            **packed,
        )

    def _order(self, order: m.RoundOrder, now: float) -> list[m.EdgeToCoordinator]:
        if self.last is not None and self.last.round >= order.round:
            return [self.last] if self.last.round == order.round else []
        self.orders.append(order.round)
        by_id = {agent.id: agent for agent in self.agents}
        outcomes = tuple(
            (
                m.Outcome(agent=given.agent, status=m.OutcomeStatus.GONE, reason="no model")
                if not self.model
                else by_id[given.agent].outcome
            )
            or arrived(given.agent)
            for given in order.assignments
        )
        used = sum(outcome.used for outcome in outcomes)
        if used:
            self.model = trained(self.model, self.manifest, (order.round, *self.id.encode()))
        self.last = self.pending = m.RoundReport(
            run=self.run,
            round=order.round,
            epoch=self.epoch,
            outcomes=outcomes,
            failed="" if used else "no update",
            model=self.digest,
            size=len(self.model),
            chunk_bytes=self.chunk_bytes,
            used=used,
            weight=sum(outcome.weight for outcome in outcomes),
            first=self.model[:PIECE_BYTES] if order.want_bytes else b"",
            timing_ms=self.timing_ms,
        )
        self._report_at = now
        return [self.last]

    def _offered(self, offer: m.GlobalModel, now: float) -> list[m.EdgeToCoordinator]:
        if offer.digest == self.digest:
            return []
        self.pull = Receiver(Layout(offer.size, offer.chunk_bytes))
        self.pull_digest = offer.digest
        self.parts = {}
        return self._accept(0, offer.first, now) if offer.first else self._need(now)

    def _chunk(self, chunk: m.Chunk, now: float) -> list[m.EdgeToCoordinator]:
        if self.pull is None or chunk.digest != self.pull_digest:
            return []
        return self._accept(chunk.index, chunk.data, now)

    def _accept(self, index: int, data: bytes, now: float) -> list[m.EdgeToCoordinator]:
        assert self.pull is not None
        if self.pull.accept(index, len(data), now):
            self.parts[index] = data
        if not self.pull.complete:
            return self._need(now)
        model = b"".join(self.parts[i] for i in sorted(self.parts))
        assert digest_of(model) == self.pull_digest
        self.model, self.pull = model, None
        return [self.status(), *self._answer(now)]

    def _need(self, now: float) -> list[m.EdgeToCoordinator]:
        assert self.pull is not None
        ranges = self.pull.ask(now)
        return [m.Need(run=self.run, digest=self.pull_digest, ranges=ranges)] if ranges else []

    def _serve(self, need: m.Need) -> list[m.EdgeToCoordinator]:
        if need.digest != self.digest:
            return []
        layout = Layout(len(self.model), self.chunk_bytes)
        sender = self._senders.setdefault(need.digest, Sender(layout))
        sender.authorise(need.ranges, link_idle=True)
        out: list[m.EdgeToCoordinator] = []
        while (found := sender.next()) is not None:
            index, nbytes = found
            start = index * self.chunk_bytes
            data = self.model[start : start + nbytes]
            out.append(m.Chunk(run=self.run, digest=need.digest, index=index, data=data))
        return out


def trained(model: bytes, manifest: Manifest, seed: tuple[int, ...]) -> bytes:
    """Return a model that learnt nothing, and does no harm that a held-out set would show."""
    rng = np.random.default_rng(seed)
    tensors = decode_tensors(model, manifest)
    return encode_tensors(
        {
            name: (tensor.astype(np.float64) + rng.normal(scale=1e-3, size=tensor.shape)).astype(
                tensor.dtype
            )
            for name, tensor in tensors.items()
        }
    )


def toy_edges(manifest: Manifest, edges: int, agents: int) -> list[ToyEdge]:
    """Return edges with agents of their own, each with a faster link than the one before."""
    return [
        ToyEdge(
            f"edge-{e}",
            manifest,
            [
                ToyAgent(f"agent-{e}-{a}", features={"compute": 1.0, "download_bps": 1e6 * (a + 1)})
                for a in range(agents)
            ],
        )
        for e in range(edges)
    ]
