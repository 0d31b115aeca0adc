"""An update that a round's end interrupts: its chunks are kept, and it is used once, later."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fedagent_edge.core.effects import LAN
from fedagent_edge.core.round import Work
from fedagent_node.effects import Received
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import digest_of
from fedagent_protocol.transfer import Layout

from .harness import RUN, Field, ToyAgent

CHUNK = 32 * 1024
ELEMENTS = 60_000
CHUNKS = 8


@dataclass
class FarAgent(ToyAgent):
    """Gets few chunks through in a round, and goes on in the next where its edge wants that."""

    chunk_bytes: int = CHUNK
    size: int = ELEMENTS
    through: int = 0
    sent: list[int] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def receive(self, message: m.AnyMessage, f: Field) -> None:
        if isinstance(message, m.RoundClosed):
            self.kept.append(message.kept)
        super().receive(message, f)

    def _ordered(self, order: m.TrainOrder, f: Field) -> None:
        offer = self.offer
        if order.made_in and offer is not None and offer.base == order.made_from:
            self.orders.append(order)
            self.late.append(order.round)
            self.offer = replace(
                offer, run=RUN, round=order.round, made_in=order.made_in, first=b""
            )
            f.to_edge(self.id, self.offer)
            return
        if not self.orders or self.orders[-1].round != order.round:
            self.offer = None
        super()._ordered(order, f)

    def make_offer(self, order: m.TrainOrder) -> m.UpdateOffer:
        self.offer = replace(super().make_offer(order), first=b"")
        return self.offer

    def _repeat(self, f: Field) -> None:
        if self.offer is not None and self.offer.round == self.orders[-1].round:
            f.to_edge(self.id, self.offer)

    def _need(self, need: m.Need, f: Field) -> None:
        assert self.offer is not None
        assert self.body is not None
        layout = Layout(len(self.body), CHUNK)
        for index in (i for start, stop in need.ranges for i in range(start, stop)):
            if self.through > 0:
                self.through -= 1
                self.sent.append(index)
                start, stop = layout.span(index)
                data = self.body[start:stop]
                chunk = m.Chunk(
                    run=RUN, round=need.round, digest=need.digest, index=index, data=data
                )
                f.to_edge(self.id, chunk)


def far_field(directory: Path, *, late_rounds: int = 5) -> tuple[Field, FarAgent]:
    far = FarAgent("far")
    agents: dict[str, ToyAgent] = {"near": ToyAgent("near", size=ELEMENTS), "far": far}
    body = msgspec.msgpack.encode({"aggregation": {"late_rounds": late_rounds}})
    return Field(directory, agents, size=ELEMENTS, body=body).ready(), far


def play(f: Field, far: FarAgent, number: int, through: int) -> m.Outcome:
    far.through = through
    f.order(number)
    report = f.run_until_report(number)
    return next(one for one in report.outcomes if one.agent == "far")


def test_the_chunks_of_a_round_count_in_the_next(tmp_path: Path) -> None:
    f, far = far_field(tmp_path)
    first, second, third = (play(f, far, number, 3) for number in (1, 2, 3))
    assert [one.valid for one in (first, second, third)] == [False, False, True]
    assert far.sent == list(range(CHUNKS)), "none twice"
    assert far.kept == [True, True]
    assert third.used
    assert third.in_time
    assert third.made_in == 1
    assert third.weight == pytest.approx(10.0 * 3.0**-0.5)
    assert third.stats.dt_ms == third.stats.lc_ms == 0, "this round has not seen them"
    assert far.receipts[-1].status is m.ReceiptStatus.ACCEPTED
    assert play(f, far, 4, CHUNKS).made_in == 0, "it is over: the next is of its own round"
    assert not list((tmp_path / "spool").glob("*.update"))


def test_an_edge_takes_no_older_base_than_it_named(tmp_path: Path) -> None:
    f, far = far_field(tmp_path)
    play(f, far, 1, 3)
    assert far.offer is not None
    f.order(2)
    f.run_for(0.005)
    forged = replace(far.offer, round=2, made_in=1, base=digest_of(b"another"))
    far.offer = None
    f.to_edge("far", forged)
    report = f.run_until_report(2)
    outcome = next(one for one in report.outcomes if one.agent == "far")
    assert (outcome.status, outcome.reason) == (m.OutcomeStatus.REJECTED, "stale_base")


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    through=st.lists(st.integers(0, CHUNKS), min_size=1, max_size=7),
    restarts=st.sets(st.integers(1, 7), max_size=2),
    away=st.sets(st.integers(1, 7), max_size=2),
)
def test_an_update_is_used_once_however_it_comes(
    tmp_path_factory: pytest.TempPathFactory,
    through: list[int],
    restarts: set[int],
    away: set[int],
) -> None:
    f, far = far_field(tmp_path_factory.mktemp("edge"))
    works: list[int] = []
    for number, chunks in enumerate(through, start=1):
        names = ["near"] if number in away else ["near", "far"]
        far.through = chunks
        f.order(number, assignments=tuple(m.Assignment(agent=name) for name in names))
        if number in restarts:
            f.run_for(1.0)
            f.restart()
        report = f.run_until_report(number)
        outcome = next((one for one in report.outcomes if one.agent == "far"), None)
        if outcome is not None and outcome.valid:
            age = number - outcome.made_in if outcome.made_in else 0
            works.append(outcome.made_in or number)
            assert 0 <= age <= 5
            assert outcome.weight == pytest.approx(10.0 * (1.0 + age) ** -0.5)
        files = list((f.directory / "spool").glob("*.update"))
        assert len(files) <= 1
        assert len(files) == sum(bool(one.have) for one in f.core.rounds.updates.kept.values())
    assert len(works) == len(set(works))
    assert f.core.rounds.updates.uploads.pool.used_bytes == 0
    if not restarts:
        assert len(far.sent) <= CHUNKS * (1 + len(works) + len(through) // 6), "few are sent twice"


def test_who_goes_to_and_fro_between_late_work_and_its_own_fills_no_disk(tmp_path: Path) -> None:
    f, far = far_field(tmp_path)
    play(f, far, 1, 3)
    f.order(2)
    f.run_for(0.05)
    order, late, far.silent = far.orders[-1], far.offer, True
    assert late is not None
    for number in range(5):
        digest = digest_of(bytes([number]))
        own = replace(late, made_in=0, base=order.model, digest=digest)
        chunk = m.Chunk(run=RUN, round=2, digest=digest, index=0, data=bytes(CHUNK))
        for offer, chunks in ((own, (chunk,)), (late, ())):
            for said in (m.Bye(), m.Hello(), offer, *chunks):
                f.edge.receive(Received("far", said, LAN, f.now))
            assert len(list((tmp_path / "spool").glob("*.update"))) <= 2


def test_what_is_kept_is_bounded_and_the_oldest_that_has_no_room_goes_first(
    tmp_path: Path,
) -> None:
    f, far = far_field(tmp_path)
    updates = f.core.rounds.updates
    updates.most_kept_bytes = len(f.model) + 1000
    zero = "0" * 64
    for name, size in (("nothing here", 0), ("small", 300), ("x", 600), ("y", 600)):
        offer = m.UpdateOffer(
            size=size, base=zero, digest=zero, task=zero, chunk_bytes=600, stats=m.TrainStats()
        )
        work = Work(RUN, 0, zero, Layout(600, 600), offer if size else None)
        updates.kept[name] = work
    assert not play(f, far, 1, 3).valid
    assert list(updates.kept) == ["nothing here", "small", "y", "far"]
