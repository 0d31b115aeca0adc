"""Work claims: only their agent can make one, and only for what it names."""

import pytest
from msgspec.structs import replace

from fedagent_protocol.messages import Outcome, OutcomeStatus, TrainStats, UpdateOffer
from fedagent_protocol.work import claimed_in, is_claimed, is_proved, proof_of, sign_claim, work_in
from tests.fakes.voices import identity

ME, OTHER = identity("agent"), identity("other")
RUN, TASK, BASE, EDGE = "1" * 32, "2" * 64, "3" * 64, "e" * 32
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


def claimed(offer: UpdateOffer = OFFER, *, edge: str = EDGE) -> UpdateOffer:
    claim = sign_claim(offer, edge=edge, agent=ME.id, public=ME.public_bytes, sign=ME.sign)
    return replace(offer, claim=claim)


def outcome(offer: UpdateOffer) -> Outcome:
    stats = replace(offer.stats, lc_ms=4)  # an edge lowers durations
    return Outcome(
        agent=ME.id, status=OutcomeStatus.ARRIVED, valid=True, stats=stats, proof=proof_of(offer)
    )


def proved(one: Outcome, **changes: object) -> bool:
    facts = {"run": RUN, "round_": 7, "edge": EDGE, "task": TASK, **changes}
    return is_proved(one, **facts)  # type: ignore[arg-type]  # from a parameter


def test_a_claim_is_verified_by_the_edge_and_by_the_coordinator() -> None:
    offer = claimed()
    assert is_claimed(offer, edge=EDGE, agent=ME.id)
    assert proved(outcome(offer))


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "9" * 32},
        {"round": 8},
        {"digest": "9" * 64},
        {"size": 901},
        {"base": "9" * 64},
        {"made_in": 5},
        {"task": "9" * 64},
        {"stats": TrainStats(num_samples=11, iterations=3)},
        {"stats": TrainStats(num_samples=10, iterations=4)},
    ],
    ids=str,
)
def test_what_it_names_cannot_be_changed(changes: dict[str, object]) -> None:
    assert not is_claimed(replace(claimed(), **changes), edge=EDGE, agent=ME.id)


@pytest.mark.parametrize(
    "claim",
    [b"", bytes(96), claimed().claim[:-1], OTHER.public_bytes + claimed().claim[32:]],
    ids=["none", "zeros", "short", "another key"],
)
def test_it_is_the_agents_own(claim: bytes) -> None:
    assert not is_claimed(replace(OFFER, claim=claim), edge=EDGE, agent=ME.id)
    assert not is_claimed(claimed(), edge=EDGE, agent=OTHER.id)
    assert not is_claimed(claimed(), edge="f" * 32, agent=ME.id)


def test_what_an_edge_reports_of_an_agent_needs_its_claim() -> None:
    honest = outcome(claimed())
    assert not proved(replace(honest, proof=None))
    assert not proved(replace(honest, agent=OTHER.id))
    assert not proved(replace(honest, stats=replace(honest.stats, num_samples=10**6)))
    for changes in ({"run": "9" * 32}, {"round_": 8}, {"edge": "f" * 32}, {"task": "9" * 64}):
        assert not proved(honest, **changes)


def test_an_edge_signs_in_no_devices_name_with_a_key_of_its_own() -> None:
    """Money goes to an id, and an id is the hash of its key."""
    claim = sign_claim(OFFER, edge=EDGE, agent=ME.id, public=OTHER.public_bytes, sign=OTHER.sign)
    assert not proved(outcome(replace(OFFER, claim=claim)))


def test_late_work_is_claimed_for_the_round_that_pays_and_names_the_one_it_was_begun_in() -> None:
    late = replace(OFFER, made_in=5)
    claim = sign_claim(late, edge=EDGE, agent=ME.id, public=ME.public_bytes, sign=ME.sign)
    late = replace(late, claim=claim)
    assert is_claimed(late, edge=EDGE, agent=ME.id)
    assert not is_claimed(replace(late, made_in=0), edge=EDGE, agent=ME.id)
    told = replace(outcome(late), made_in=5)
    assert proved(told)
    assert not any(proved(replace(told, made_in=other)) for other in (0, 4, 6))
    facts = work_in(claimed_in(told, run=RUN, round_=7, edge=EDGE, task=TASK))
    assert (facts["round"], facts["made_in"]) == (7, 5)
    plain = work_in(claimed_in(outcome(claimed()), run=RUN, round_=7, edge=EDGE, task=TASK))
    assert "made_in" not in plain
