"""Scores of devices on the wire: in range or refused, and absent in what older peers send."""

import math

import msgspec
import pytest

from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.errors import MalformedError

D = "a" * 64


def _offer(**more: float) -> m.UpdateOffer:
    stats = msgspec.structs.replace(m.TrainStats(num_samples=4), **more)
    return m.UpdateOffer(digest=D, size=3, chunk_bytes=1024, base=D, task=D, stats=stats)


def test_a_score_survives_the_wire() -> None:
    offer = _offer(score=0.75, score_n=40)
    assert decode(Direction.AGENT_TO_EDGE, encode(offer)) == offer
    outcome = m.Outcome(
        agent="a", status=m.OutcomeStatus.ARRIVED, stats=m.TrainStats(score=0.5, score_n=2)
    )
    report = m.RoundReport(epoch="0" * 32, outcomes=(outcome,))
    assert decode(Direction.EDGE_TO_COORDINATOR, encode(report)) == report


def test_an_agent_that_knows_no_scores_says_none() -> None:
    assert b"score" not in encode(_offer())
    offer = decode(Direction.AGENT_TO_EDGE, encode(_offer()))
    assert isinstance(offer, m.UpdateOffer)
    assert (offer.stats.score, offer.stats.score_n) == (0.0, 0)


@pytest.mark.parametrize("score", [-0.1, 1.1, math.inf, math.nan])
def test_no_other_number_is_a_score(score: float) -> None:
    raw = msgspec.msgpack.decode(encode(_offer()))
    raw["stats"] |= {"score": score, "score_n": 1}
    with pytest.raises(MalformedError):
        decode(Direction.AGENT_TO_EDGE, msgspec.msgpack.encode(raw))
    outcome = {"agent": "a", "status": "arrived", "stats": {"score": score}}
    report = {"t": "report", "epoch": "0" * 32, "outcomes": [outcome]}
    with pytest.raises(MalformedError):
        decode(Direction.EDGE_TO_COORDINATOR, msgspec.msgpack.encode(report))
