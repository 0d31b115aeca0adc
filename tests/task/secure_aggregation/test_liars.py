"""One enrolled device that lies: it is left out or named, and the others have their sum."""

import secrets
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from fedagent_protocol.messages import MaskKeys, MaskOpening, MaskShares
from fedagent_protocol.signed import identity_of
from fedagent_task.errors import MaskingError
from fedagent_task.recipe.spec import SecureAggregationSpec
from fedagent_task.secure_aggregation.cohort import Cohort, VoidError
from fedagent_task.secure_aggregation.keys import Place, signed_bytes
from fedagent_task.secure_aggregation.member import Member
from fedagent_task.secure_aggregation.ring import add_masks, ring_of, vector_of

SPEC = SecureAggregationSpec(minimum_cohort=5)
PLACE = Place("1" * 32, 7, "e" * 32)
RING = ring_of(SPEC, 1)
LOW_ORDER = (bytes(32), (1).to_bytes(32, "little"))


def device() -> tuple[Member, Ed25519PrivateKey]:
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    return Member(identity_of(public), public, key.sign, PLACE, SPEC), key


class Round:
    """Honest devices, and what the first of them by its id sends in place of the truth."""

    def __init__(self, count: int = 20) -> None:
        made = sorted((device()[0] for _ in range(count)), key=lambda one: one.agent)
        self.members = {one.agent: one for one in made}
        self.liar, *self.others = self.members
        self.cohort = Cohort(PLACE, SPEC)

    def share(
        self, lie: Callable[[MaskShares], MaskShares] = lambda said: said, liars: int = 1
    ) -> None:
        for agent, member in self.members.items():
            self.cohort.keys(agent, member.keys())
        roster = self.cohort.close_keys()
        for agent, member in self.members.items():
            said = member.roster(roster)
            lying = agent in [*self.members][:liars]
            self.cohort.shares(agent, lie(said) if lying else said)
        for agent in self.cohort.close_shares():
            self.members[agent].delivery(self.cohort.delivery(agent))
            self.cohort.agree(agent, self.members[agent].agreement())

    def open(
        self, lie: Callable[[MaskOpening], MaskOpening] = lambda said: said, missing: int = 0
    ) -> bool:
        """Return whether the masks come off; the last `missing` drop out before their update."""
        survivors = [*self.members][: len(self.members) - missing]
        rng = np.random.default_rng(3)
        plain = [vector_of({"w": rng.normal(size=9) / 9}, 1, RING) for _ in survivors]
        total = sum(plain, np.zeros_like(plain[0]))
        masked = total.copy()
        for agent in survivors:
            add_masks(masked, self.members[agent].seeds(), RING)
        ask = self.cohort.survivors(frozenset(survivors))
        for agent in survivors:
            said = self.members[agent].opening(ask)
            self.cohort.opening(agent, lie(said) if agent == self.liar else said)
        add_masks(masked, self.cohort.unmask(), RING)
        return np.array_equal(masked, total)


def forged(member: Member, key: Ed25519PrivateKey, **fields: bytes) -> MaskKeys:
    known = member.keys().keys
    mask, seal = fields.get("mask", known.mask), fields.get("seal", known.seal)
    signature = key.sign(signed_bytes(PLACE, mask, seal))
    return MaskKeys(keys=replace(known, mask=mask, seal=seal, signature=signature))


@pytest.mark.parametrize("reason", ["weak_key", "same_key", "stranger", "barred"])
def test_who_may_not_be_on_the_roster_is_not_and_the_others_go_on(reason: str) -> None:
    here, (bad, key) = Round(6), device()
    victim = here.members[here.others[0]]
    here.cohort.keys(victim.agent, victim.keys())
    here.cohort.trusted = lambda agent, _keys: reason != "stranger" or agent != bad.agent
    here.cohort.barred = frozenset({bad.agent} if reason == "barred" else ())
    masks = {"weak_key": LOW_ORDER[1], "same_key": victim.keys().keys.mask}
    with pytest.raises(MaskingError) as caught:
        here.cohort.keys(bad.agent, forged(bad, key, mask=masks.get(reason, bad.keys().keys.mask)))
    assert caught.value.reason == f"masking_{reason}"
    here.share()
    assert bad.agent not in here.cohort.members
    assert here.open()


# --------------------------------------------------------------------- answers


@pytest.mark.parametrize(("missing", "false"), [(5, 20), (0, 1)])
def test_false_answers_are_named_and_the_others_take_the_masks_off(
    missing: int, false: int
) -> None:
    here = Round()
    here.share()
    victims = dict.fromkeys([*here.members][-false:], b"\0" * 65 + b"\1")
    assert here.open(lambda said: replace(said, shares={**said.shares, **victims}), missing)
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
    here = Round()
    here.share(sealed_rubbish(few))
    with pytest.raises(VoidError, match=f"{here.liar[:12]} gave out shares that do not open"):
        here.open()
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
    here = Round()
    here.share(lie)
    with pytest.raises(VoidError, match=f"{here.liar[:12]} gave out shares"):
        here.open()
    assert here.cohort.liars.keys() == {here.liar}


def just_enough_answers(
    here: Round,
    omitted: dict[str, set[str]],
    dealt: Callable[[MaskShares], MaskShares] = lambda said: said,
) -> None:
    """Open with as many answers as are needed; some leave shares of others away."""
    here.share(dealt)
    ask = here.cohort.survivors(frozenset(here.members))
    for agent in [*here.members][: SPEC.shares_needed(len(here.members))]:
        said = here.members[agent].opening(ask)
        gone = omitted.get(agent, set())
        kept = {a: share for a, share in said.shares.items() if a not in gone}
        here.cohort.opening(agent, replace(said, shares=kept))


def test_who_keeps_its_own_share_back_is_named() -> None:
    here = Round(10)
    just_enough_answers(here, {here.liar: {here.liar}})
    with pytest.raises(VoidError, match=f"{here.liar[:12]} kept its own share back"):
        here.cohort.unmask()
    assert here.cohort.liars.keys() == {here.liar}


def test_a_dealer_of_rubbish_and_two_holders_cannot_have_honest_dealers_barred() -> None:
    here = Round()
    one, two, *honest = here.others
    framed = set(honest[:9])
    just_enough_answers(here, {one: framed, two: framed}, sealed_rubbish(0))
    with pytest.raises(VoidError, match=f"{here.liar[:12]} gave out shares that do not open"):
        here.cohort.unmask()
    assert here.cohort.liars.keys() == {here.liar}


def test_where_nobody_is_to_spare_one_false_share_keeps_no_holder_from_taking_part() -> None:
    here = Round(SPEC.minimum_cohort)
    here.share(sealed_rubbish(few=3))
    assert here.open()


@pytest.mark.parametrize(("holders", "answers"), [(1, 5), (2, 4)])
def test_a_few_holders_cannot_have_the_others_barred(holders: int, answers: int) -> None:
    here = Round(10)
    honest = set(here.others[1:]) if holders == 2 else {here.others[0]}
    just_enough_answers(here, dict.fromkeys([*here.members][:holders], honest))
    with pytest.raises(VoidError, match=f"answers of {answers} devices"):
        here.cohort.unmask()
    assert here.cohort.liars == {}
