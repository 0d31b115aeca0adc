"""What is signed: only who has the key can say it, and only of all that it names."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
    Opinion,
    OpinionMode,
    Outcome,
    OutcomeStatus,
    TrainStats,
    UpdateOffer,
)
from fedagent_protocol.signed import (
    Asked,
    Assigning,
    Calling,
    WorkClaim,
    claim_of,
    is_claim,
    is_proved,
    proof_of,
    task_of_run,
    terms,
    verify,
)
from tests.fakes.voices import identity

ME, OTHER = identity("agent"), identity("other")
SITE, RUN, TASK, BASE, EDGE = "lab", "1" * 32, "2" * 64, "3" * 64, "e" * 32
ASKED = Asked(site=SITE, run=RUN, round=4, task=TASK, model=BASE)
SAID = Opinion(model=BASE, score=0.7, samples=12, metric="accuracy", epsilon=0.3)
OFFER = UpdateOffer(
    run=RUN,
    round=7,
    digest="4" * 64,
    size=900,
    chunk_bytes=1024,
    base=BASE,
    task=TASK,
    stats=TrainStats(num_samples=10, iterations=3, lc_ms=5),
)
MADE = Assigning(RUN, 7, EDGE, ME.id, TASK)
CALL = Calling(RUN, 7, TASK, BASE, OpinionMode.REPORT, 3)

STATEMENTS: dict[str, tuple[Callable[..., bytes], tuple[object, ...], tuple[object, ...]]] = {
    "work": (
        lambda *facts: WorkClaim(*facts).statement,
        tuple(WorkClaim.offered(OFFER, EDGE, ME.id)),
        ("9" * 32, 8, "f" * 32, OTHER.id, "9" * 64, "9" * 64, "9" * 64, 901, 11, 4, 5),
    ),
    "terms": (
        lambda edge, agent, *of: terms(edge, agent, seq=of[0], price=of[1], available=of[2]),
        (EDGE, ME.id, 7, 250_000, True),
        ("f" * 32, OTHER.id, 8, 250_001, False),
    ),
    "opinion": (
        lambda *facts: Asked.scored(_asked(facts), *facts[5:]),
        (*structs.astuple(ASKED), ME.id, "accuracy", 0.7, 12, 0.3),
        ("hall", "9" * 32, 3, "9" * 64, "9" * 64, OTHER.id, "loss", 0.7001, 13, 0.0),
    ),
    "volunteer": (
        lambda *facts: Asked.volunteer(_asked(facts), *facts[5:]),
        (*structs.astuple(ASKED), ME.id, EDGE),
        ("hall", "9" * 32, 3, "9" * 64, "9" * 64, OTHER.id, "f" * 32),
    ),
    "assignment": (
        lambda site, *facts: Assigning(*facts).statement(site),
        (SITE, *MADE),
        ("hall", "9" * 32, 8, "f" * 32, OTHER.id, "9" * 64),
    ),
    "call": (
        lambda site, *facts: Calling(*facts).statement(site),
        (SITE, *CALL),
        ("hall", "9" * 32, 8, "9" * 64, "9" * 64, OpinionMode.PEERS, 4),
    ),
    "task": (task_of_run, (SITE, RUN, TASK, 1000), ("hall", "9" * 32, "9" * 64, 2000)),
}


def _asked(facts: tuple[object, ...]) -> Asked:
    return Asked(**dict(zip(Asked.__struct_fields__, facts, strict=False)))  # type: ignore[arg-type] # from a table


@pytest.mark.parametrize("kind", STATEMENTS)
def test_nothing_that_a_statement_names_can_be_changed(kind: str) -> None:
    make, facts, others = STATEMENTS[kind]
    claim = claim_of(ME, said := make(*facts))
    assert is_claim(claim, ME.id, said)
    assert len(facts) == len(others)
    for place, other in enumerate(others):
        changed = make(*facts[:place], other, *facts[place + 1 :])
        assert not is_claim(claim, ME.id, changed), place


def test_no_statement_is_one_of_another_kind() -> None:
    """Their kinds stand before their facts: the same facts of two kinds are two statements."""
    same = (RUN, 7, EDGE, ME.id, TASK)
    assert Assigning(*same).statement(SITE) != Calling(*same, 1).statement(SITE)  # type: ignore[arg-type]
    begins = [make(*facts).partition(b"\0")[0] for make, facts, _ in STATEMENTS.values()]
    assert len(set(begins)) == len(STATEMENTS)


@pytest.mark.parametrize(
    "claim",
    [
        b"",
        bytes(96),
        claim_of(ME, MADE.statement(SITE))[:-1],
        OTHER.public_bytes + claim_of(ME, MADE.statement(SITE))[32:],
        claim_of(OTHER, MADE.statement(SITE)),
    ],
    ids=["none", "zeros", "short", "another key", "another's"],
)
def test_it_is_the_agents_own(claim: bytes) -> None:
    assert not is_claim(claim, ME.id, MADE.statement(SITE))
    assert not verify(claim[:32], claim[32:], b"something else")


@given(st.floats(0, 1), st.floats(0, 1e6))
def test_what_is_signed_is_what_columns_carry(score: float, epsilon: float) -> None:
    said = structs.replace(SAID, score=score, epsilon=epsilon)
    told = [float(np.array([x], "<f4")[0]) for x in (score, epsilon)]
    scored = ASKED.scored(ME.id, said.metric, told[0], said.samples, told[1])
    assert scored == ASKED.opinion(ME.id, said)


def outcome(offer: UpdateOffer = OFFER) -> Outcome:
    claim = claim_of(ME, WorkClaim.offered(offer, EDGE, ME.id).statement)
    return Outcome(
        agent=ME.id,
        status=OutcomeStatus.ARRIVED,
        valid=True,
        stats=structs.replace(offer.stats, lc_ms=4),  # an edge lowers durations
        proof=proof_of(structs.replace(offer, claim=claim)),
        made_in=offer.made_in,
    )


def proved(one: Outcome, **changes: object) -> bool:
    facts = {"run": RUN, "round_": 7, "edge": EDGE, "task": TASK, **changes}
    return is_proved(one, **facts)  # type: ignore[arg-type] # from a parameter


def test_what_an_edge_reports_of_an_agent_needs_its_claim() -> None:
    honest = outcome()
    assert proved(honest)
    assert not proved(structs.replace(honest, proof=None))
    assert not proved(structs.replace(honest, agent=OTHER.id))
    claim = claim_of(OTHER, WorkClaim.offered(OFFER, EDGE, ME.id).statement)
    proof = proof_of(structs.replace(OFFER, claim=claim))
    assert not proved(structs.replace(honest, proof=proof)), "an id is the hash of its key"
    more = structs.replace(honest.stats, num_samples=10**6)
    assert not proved(structs.replace(honest, stats=more))
    for changes in ({"run": "9" * 32}, {"round_": 8}, {"edge": "f" * 32}, {"task": "9" * 64}):
        assert not proved(honest, **changes)


def test_late_work_is_claimed_for_the_round_that_pays_and_names_the_one_it_was_begun_in() -> None:
    late = outcome(structs.replace(OFFER, made_in=5))
    assert proved(late)
    assert not any(proved(structs.replace(late, made_in=other)) for other in (0, 4, 6))


def test_work_is_read_from_what_was_signed() -> None:
    work = WorkClaim.offered(OFFER, EDGE, ME.id)
    assert WorkClaim.read(work.statement) == work
    with pytest.raises(ProtocolError):
        WorkClaim.read(b"something else")
