"""Terms: only the agent can sign them, and only for one edge, number, price and availability."""

import pytest

from fedagent_protocol.messages import ContextReport
from fedagent_protocol.terms import are_signed, sign_terms
from tests.fakes.voices import identity

ME, OTHER = identity("agent"), identity("other")
EDGE = "e" * 32
TERMS = {"edge": EDGE, "agent": ME.id, "seq": 7, "price": 250_000, "available": True}


def claim(by: str = "agent") -> bytes:
    me = identity(by)
    report = ContextReport(seq=7, available=True, price=250_000, features={"compute": 2.0})
    return sign_terms(report, edge=EDGE, agent=ME.id, public=me.public_bytes, sign=me.sign)


def test_what_the_agent_signed_is_its_word() -> None:
    assert are_signed(claim(), **TERMS)  # type: ignore[arg-type]  # from a constant


@pytest.mark.parametrize(
    "change",
    [{"edge": "f" * 32}, {"seq": 8}, {"price": 250_001}, {"available": False}, {"agent": OTHER.id}],
    ids=str,
)
def test_other_terms_are_not(change: dict[str, object]) -> None:
    assert not are_signed(claim(), **{**TERMS, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made", [b"", bytes(96), claim("other"), claim()[:-1], claim()[:32] + bytes(64)], ids=len
)
def test_nobody_else_signs_for_it(made: bytes) -> None:
    assert not are_signed(made, **TERMS)  # type: ignore[arg-type]
