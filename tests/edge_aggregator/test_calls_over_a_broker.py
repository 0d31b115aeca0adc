"""Calls of the real process on a real broker: opinions up, envelopes sideways."""

import os
from pathlib import Path

import pytest

from fedagent_node.link import BrokerAddress
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.tensors import encode_tensors

from .evaluators import scores, volunteers
from .harness import RUN, model_tensors
from .test_edge_daemon import (
    BROKERS,
    SITE,
    EdgeProcess,
    agent,
    coordinator,
    hand_over,
    on_a_shared_broker,
    say,
    tell,
)


@pytest.mark.parametrize("kind", BROKERS)
def test_opinions_and_envelopes_over_a_real_broker(tmp_path: Path, kind: str) -> None:
    async def scene(process: EdgeProcess, address: BrokerAddress, edge_id: str) -> None:
        model = encode_tensors(model_tensors(300_000))
        async with (
            coordinator(address, edge_id) as boss,
            agent(address, "a0", edge_id) as one,
            agent(address, "a1", edge_id) as two,
        ):
            digest = await hand_over(boss, edge_id, model)
            facts = {"run": RUN, "model": digest, "until_ms": 15_000}

            tell(boss, edge_id, m.OpinionOpen(round=0, **facts))  # type: ignore[arg-type]
            await two.message(m.OpinionCall, round=0)
            call = await one.message(m.OpinionCall, round=0)
            assert isinstance(call, m.OpinionCall)
            assert (call.model, call.size) == (digest, len(model))
            await one.link.subscribe(topics.model(SITE, edge_id, digest))
            say(one, "a0", edge_id, m.Need(run=RUN, digest=digest, ranges=((0, 4),)))
            await one.message(m.Chunk, index=3)
            say(one, "a0", edge_id, m.Need(run=RUN, digest=digest, ranges=((4, 5),)))
            await one.message(m.Chunk, index=4)
            chunks = [x for t, x in one.messages if isinstance(x, m.Chunk) and "/model/" in t]
            assert b"".join(chunk.data for chunk in chunks) == model
            for seat, name, score in ((one, "a0", 0.25), (two, "a1", 0.75)):
                opinion = m.Opinion(
                    run=RUN, model=digest, score=score, samples=3, metric="accuracy"
                )
                say(seat, name, edge_id, opinion)
            told = await boss.message(m.Opinions, round=0)
            assert isinstance(told, m.Opinions)
            assert scores(told) == {"a0": 0.25, "a1": 0.75}
            tell(boss, edge_id, m.OpinionsReceipt(run=RUN))

            peers = m.OpinionMode.PEERS
            tell(boss, edge_id, m.OpinionOpen(round=1, mode=peers, **facts))  # type: ignore[arg-type]
            await two.message(m.OpinionCall, round=1, mode=peers)
            near = await one.message(m.Neighbours)
            assert isinstance(near, m.Neighbours)
            assert near.peers == {"a1": 1.0}
            body = os.urandom(512)
            say(one, "a0", edge_id, m.PeerSend(to="a1", body=body))
            envelope = await two.message(m.PeerDeliver, sender="a0")
            assert isinstance(envelope, m.PeerDeliver)
            assert envelope.body == body
            say(two, "a1", edge_id, m.Volunteer(run=RUN, round=1))
            while True:
                word = await boss.message(m.Volunteers, round=1)
                assert isinstance(word, m.Volunteers)
                if word.session:
                    break
                boss.messages.remove(next(x for x in boss.messages if x[1] is word))
            assert volunteers(word) == ["a1"]
            tell(boss, edge_id, m.OpinionClose(run=RUN, round=1))

    on_a_shared_broker(tmp_path, kind, scene)
