"""What an edge keeps of updates that a round's end interrupts: of whom, from what, how much.

That the rest is asked for, and counts once, is in `tests/world/test_late_work.py`.
"""

from pathlib import Path

import msgspec
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
BODY = msgspec.msgpack.encode({"aggregation": {"late_rounds": 5}})


def far_field(directory: Path) -> Field:
    agents = {name: ToyAgent(name, size=ELEMENTS, chunk_bytes=CHUNK) for name in ("near", "far")}
    return Field(directory, agents, size=ELEMENTS, body=BODY, chunk_bytes=CHUNK).ready()


def interrupted(field: Field) -> m.UpdateOffer:
    """Play a round that ends with a few chunks of an update here; return its offer."""
    far = field.agents["far"]
    field.agents["near"].work_s = 1.0
    field.order(1)
    while not list((field.directory / "spool").glob("*.update")):
        field.run_for(0.002)
    far.silent = True
    field.run_until_report(1)
    assert far.offer is not None
    return far.offer


def test_an_edge_takes_no_older_base_than_it_named(tmp_path: Path) -> None:
    f = far_field(tmp_path)
    offer = interrupted(f)
    f.order(2)
    f.run_for(0.005)
    forged = replace(offer, round=2, made_in=1, base=digest_of(b"another"))
    f.to_edge("far", forged)
    report = f.run_until_report(2)
    outcome = next(one for one in report.outcomes if one.agent == "far")
    assert (outcome.status, outcome.reason) == (m.OutcomeStatus.REJECTED, "stale_base")


def test_who_goes_to_and_fro_between_late_work_and_its_own_fills_no_disk(tmp_path: Path) -> None:
    f = far_field(tmp_path)
    offer = interrupted(f)
    f.order(2)
    f.run_for(0.05)
    late = replace(offer, round=2, made_in=1, first=b"")
    for number in range(5):
        digest = digest_of(bytes([number]))
        own = replace(late, made_in=0, base=f.core.memory.model, digest=digest)
        chunk = m.Chunk(run=RUN, round=2, digest=digest, index=0, data=bytes(CHUNK))
        for offer, chunks in ((own, (chunk,)), (late, ())):
            for said in (m.Bye(), m.Hello(), offer, *chunks):
                f.edge.receive(Received("far", said, LAN, f.now))
            assert len(list((tmp_path / "spool").glob("*.update"))) <= 2


def test_what_is_kept_is_bounded_and_the_oldest_that_has_no_room_goes_first(tmp_path: Path) -> None:
    f = far_field(tmp_path)
    updates = f.core.rounds.updates
    updates.most_kept_bytes = len(f.model) + 1000
    zero = "0" * 64
    for name, size in (("nothing here", 0), ("small", 300), ("x", 600), ("y", 600)):
        offer = m.UpdateOffer(
            size=size, base=zero, digest=zero, task=zero, chunk_bytes=600, stats=m.TrainStats()
        )
        work = Work(RUN, 0, zero, Layout(600, 600), offer if size else None)
        updates.kept[name] = work
    interrupted(f)
    assert list(updates.kept) == ["nothing here", "small", "y", "far"]


def test_a_model_that_nobody_goes_on_with_is_not_kept_ready(tmp_path: Path) -> None:
    field = far_field(tmp_path)
    mute = field.agents["far"]
    mute.work_s = 1e6
    for number in range(1, 6):
        field.order(number)
        field.run_for(0.1)
        mute.silent, model = True, mute.orders[-1].model
        need = m.Need(run=RUN, round=number, digest=model, ranges=((0, 1),))
        field.to_edge("far", need)
        field.run_until_report(number)
        mute.silent = False
    assert len(field.core.exchange._out) <= 2
