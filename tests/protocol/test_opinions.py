"""What a device signs when it tells its opinion, or volunteers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fedagent_protocol.messages import Opinion
from fedagent_protocol.opinions import Asked
from fedagent_protocol.signatures import is_claim
from tests.fakes.voices import identity

ME, OTHER, EDGE = identity("device"), identity("other"), identity("edge").id
ASKED = Asked(site="lab", run="1" * 32, round=4, task="a" * 64, model="b" * 64)
SAID = Opinion(model="b" * 64, score=0.7, samples=12, metric="accuracy", epsilon=0.3)


def claim(said: bytes) -> bytes:
    return ME.public_bytes + ME.sign(said)


@pytest.mark.parametrize(
    "change",
    [{"site": "hall"}, {"run": "2" * 32}, {"round": 3}, {"task": "c" * 64}, {"model": "c" * 64}],
    ids=str,
)
def test_an_answer_to_another_call_is_none(change: dict[str, object]) -> None:
    other = structs.replace(ASKED, **change)
    made = claim(ASKED.opinion(ME.id, SAID))
    assert is_claim(made, ME.id, ASKED.opinion(ME.id, SAID))
    assert not is_claim(made, ME.id, other.opinion(ME.id, SAID))
    made = claim(ASKED.volunteer(ME.id, EDGE))
    assert is_claim(made, ME.id, ASKED.volunteer(ME.id, EDGE))
    assert not is_claim(made, ME.id, other.volunteer(ME.id, EDGE))


@pytest.mark.parametrize(
    "change", [{"score": 0.7001}, {"samples": 13}, {"metric": "loss"}, {"epsilon": 0.0}], ids=str
)
def test_another_opinion_is_none(change: dict[str, object]) -> None:
    made = claim(ASKED.opinion(ME.id, SAID))
    assert not is_claim(made, ME.id, ASKED.opinion(ME.id, structs.replace(SAID, **change)))


def test_nobody_elses_and_no_other_edge() -> None:
    made = claim(ASKED.opinion(ME.id, SAID))
    assert not is_claim(made, OTHER.id, ASKED.opinion(OTHER.id, SAID))
    volunteers = claim(ASKED.volunteer(ME.id, EDGE))
    assert not is_claim(volunteers, ME.id, ASKED.volunteer(ME.id, OTHER.id))
    assert not is_claim(volunteers, ME.id, ASKED.opinion(ME.id, SAID))


@given(st.floats(0, 1), st.floats(0, 1e6))
def test_what_is_signed_is_what_columns_carry(score: float, epsilon: float) -> None:
    said = structs.replace(SAID, score=score, epsilon=epsilon)
    told = [float(np.array([x], "<f4")[0]) for x in (score, epsilon)]
    scored = ASKED.scored(ME.id, said.metric, told[0], said.samples, told[1])
    assert scored == ASKED.opinion(ME.id, said)
