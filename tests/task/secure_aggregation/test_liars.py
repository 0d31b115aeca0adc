"""One enrolled device that lies: it is left out or named, and the others have their sum."""

import secrets
from collections.abc import Callable, Collection

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import MaskKeys, MaskOpening, MaskShares, MemberKeys
from fedagent_protocol.signed import identity_of
from fedagent_task.recipe.spec import SecureAggregationSpec
from fedagent_task.secure_aggregation.keys import signed_bytes
from fedagent_task.secure_aggregation.member import Member

from .test_protocol import PLACE, Round

SPEC = SecureAggregationSpec(minimum_cohort=5)
LOW_ORDER = (bytes(32), (1).to_bytes(32, "little"))


def forged(key: Ed25519PrivateKey, known: MemberKeys, mask: bytes) -> MaskKeys:
    mask = mask or known.mask
    signature = key.sign(signed_bytes(PLACE, mask, known.seal))
    return MaskKeys(keys=replace(known, mask=mask, signature=signature))


def exact(
    here: Round,
    gone: Collection[str] = (),
    lie: Callable[[MaskOpening], MaskOpening] | None = None,
) -> None:
    """Check that the masks come off."""
    survivors, total = here.finish(updates=gone, lie=lie)
    assert total == here.expected(survivors)


@pytest.mark.parametrize("reason", ["weak_key", "same_key", "stranger", "barred"])
def test_who_may_not_be_on_the_roster_is_not_and_the_others_go_on(reason: str) -> None:
    here, key = Round(6, SPEC), Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    bad = Member(identity_of(public), public, key.sign, PLACE, SPEC)
    victim = here.members[here.agents[1]]
    here.cohort.keys(victim.agent, victim.keys())
    here.cohort.trusted = lambda agent, _keys: reason != "stranger" or agent != bad.agent
    here.cohort.barred = frozenset({bad.agent} if reason == "barred" else ())
    masks = {"weak_key": LOW_ORDER[1], "same_key": victim.keys().keys.mask}
    with pytest.raises(ProtocolError) as caught:
        here.cohort.keys(bad.agent, forged(key, bad.keys().keys, mask=masks.get(reason, b"")))
    assert caught.value.reason == f"masking_{reason}"
    here.share()
    assert bad.agent not in here.cohort.members
    exact(here)


# --------------------------------------------------------------------- answers


@pytest.mark.parametrize(("missing", "false"), [(5, 20), (0, 1)])
def test_false_answers_are_named_and_the_others_take_the_masks_off(
    missing: int, false: int
) -> None:
    here = Round(20, SPEC)
    here.share()
    victims = dict.fromkeys(here.agents[-false:], b"\0" * 65 + b"\1")
    gone = here.agents[20 - missing :]
    exact(here, gone, lambda said: replace(said, shares={**said.shares, **victims}))
    assert here.cohort.liars == {here.liar: "answered with false shares"}


# -------------------------------------------------------------------- dealing


def sealed_rubbish(few: int) -> Callable[[MaskShares], MaskShares]:
    """Return shares of which all but so many open for nobody."""

    def lie(said: MaskShares) -> MaskShares:
        kept = dict(list(said.shares.items())[:few])
        rubbish = {to: secrets.token_bytes(148) for to in said.shares.keys() - kept.keys()}
        return replace(said, shares={**kept, **rubbish})

    return lie


@pytest.mark.parametrize("few", [0, 10])
def test_who_deals_shares_that_do_not_open_is_named(few: int) -> None:
    """It has one round of its edge: later ones are without it."""
    here = Round(20, SPEC)
    here.share(lie=sealed_rubbish(few))
    with pytest.raises(ProtocolError, match=f"{here.liar[:12]} gave out shares that do not open"):
        here.finish()
    assert here.cohort.liars.keys() == {here.liar}


@pytest.mark.parametrize(
    "lie",
    [
        lambda said: replace(said, commitment=bytes(32)),
        lambda said: replace(said, checks=dict.fromkeys(said.checks, bytes(64))),
    ],
    ids=["of another seed", "with other hashes"],
)
def test_who_deals_what_it_did_not_promise_is_named_and_no_holder(
    lie: Callable[[MaskShares], MaskShares],
) -> None:
    here = Round(20, SPEC)
    here.share(lie=lie)
    with pytest.raises(ProtocolError, match=f"{here.liar[:12]} gave out shares"):
        here.finish()
    assert here.cohort.liars.keys() == {here.liar}


def just_enough_answers(
    here: Round,
    omitted: dict[str, set[str]],
    dealt: Callable[[MaskShares], MaskShares] | None = None,
) -> None:
    """Open with as many answers as are needed; some leave shares of others away."""
    here.share(lie=dealt)
    ask = here.cohort.survivors(frozenset(here.members))
    for agent in here.agents[: SPEC.shares_needed(len(here.members))]:
        said = here.members[agent].opening(ask)
        gone = omitted.get(agent, set())
        kept = {a: share for a, share in said.shares.items() if a not in gone}
        here.cohort.opening(agent, replace(said, shares=kept))


def test_who_keeps_its_own_share_back_is_named() -> None:
    here = Round(10, SPEC)
    just_enough_answers(here, {here.liar: {here.liar}})
    with pytest.raises(ProtocolError, match=f"{here.liar[:12]} kept its own share back"):
        here.cohort.unmask()
    assert here.cohort.liars.keys() == {here.liar}


def test_a_dealer_of_rubbish_and_two_holders_cannot_have_honest_dealers_barred() -> None:
    here = Round(20, SPEC)
    one, two, *honest = here.agents[1:]
    framed = set(honest[:9])
    just_enough_answers(here, {one: framed, two: framed}, sealed_rubbish(0))
    with pytest.raises(ProtocolError, match=f"{here.liar[:12]} gave out shares that do not open"):
        here.cohort.unmask()
    assert here.cohort.liars.keys() == {here.liar}


def test_where_nobody_is_to_spare_one_false_share_keeps_no_holder_from_taking_part() -> None:
    here = Round(SPEC.minimum_cohort, SPEC)
    here.share(lie=sealed_rubbish(few=3))
    exact(here)


@pytest.mark.parametrize(("holders", "answers"), [(1, 5), (2, 4)])
def test_a_few_holders_cannot_have_the_others_barred(holders: int, answers: int) -> None:
    here = Round(10, SPEC)
    honest = set(here.agents[2:]) if holders == 2 else {here.agents[1]}
    just_enough_answers(here, dict.fromkeys(here.agents[:holders], honest))
    with pytest.raises(ProtocolError, match=f"answers of {answers} devices"):
        here.cohort.unmask()
    assert here.cohort.liars == {}
