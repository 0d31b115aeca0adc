"""Devices and an edge in one process: whoever drops out and when, the sum is exact or void."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
    MaskAsk,
    MaskDelivery,
    MaskKeys,
    MaskOpening,
    MaskRoster,
    MaskShares,
)
from fedagent_protocol.signed import identity_of
from fedagent_task.recipe.spec import SecureAggregationSpec
from fedagent_task.secure_aggregation.cohort import Cohort
from fedagent_task.secure_aggregation.keys import Place, survivors_needed
from fedagent_task.secure_aggregation.member import Member
from fedagent_task.secure_aggregation.ring import Ring, add_masks, ring_of, vector_of

PLACE = Place("1" * 32, 7, "e" * 32)
SPEC = SecureAggregationSpec(minimum_cohort=3)
SIZE = 40


def device(spec: SecureAggregationSpec = SPEC, place: Place = PLACE) -> Member:
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    return Member(identity_of(public), public, key.sign, place, spec)


@dataclass
class Round:
    """All of a round, with what the edge comes to."""

    count: int
    spec: SecureAggregationSpec = SPEC
    members: dict[str, Member] = field(init=False)
    cohort: Cohort = field(init=False)

    def __post_init__(self) -> None:
        made = [device(self.spec) for _ in range(self.count)]
        self.members = {one.agent: one for one in made}
        self.cohort = Cohort(PLACE, self.spec)
        rng = np.random.default_rng(self.count)
        self.plain = {
            agent: {"w": rng.normal(scale=0.1, size=SIZE).astype(np.float32)}
            for agent in self.members
        }
        self.weights = {agent: int(rng.integers(1, 100)) for agent in self.members}

    @property
    def agents(self) -> list[str]:
        return sorted(self.members)

    @property
    def liar(self) -> str:
        return self.agents[0]

    def share(
        self,
        *,
        keys: Collection[str] = (),
        shares: Collection[str] = (),
        lie: Callable[[MaskShares], MaskShares] | None = None,
    ) -> None:
        """Settle who is in the masks; those named drop out at keys or at shares.

        With a `lie` the first by its id says that in place of its shares.
        """
        for agent in self.agents:
            if agent not in keys:
                self.cohort.keys(agent, self.members[agent].keys())
        roster = self.cohort.close_keys()
        for agent in roster.members:
            if agent not in shares:
                said = self.members[agent].roster(roster)
                self.cohort.shares(agent, lie(said) if lie and agent == self.liar else said)
        for agent in self.cohort.close_shares():
            self.members[agent].delivery(self.cohort.delivery(agent))
            self.cohort.agree(agent, self.members[agent].agreement())

    def masked(self, agent: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        vector = vector_of(self.plain[agent], self.weights[agent], self.ring)
        add_masks(vector, self.members[agent].seeds(), self.ring)
        return vector

    @property
    def ring(self) -> Ring:
        return ring_of(self.spec, 100)

    def finish(
        self,
        *,
        updates: Collection[str] = (),
        answers: Collection[str] = (),
        lie: Callable[[MaskOpening], MaskOpening] | None = None,
    ) -> tuple[set[str], bytes]:
        """Return whose updates are in the sum, and the sum."""
        survivors = self.cohort.joined - set(updates)
        total = sum((self.masked(agent) for agent in survivors), np.zeros(SIZE + 1, self.ring.word))
        ask = self.cohort.survivors(frozenset(survivors))
        for agent in sorted(ask.survivors):
            if agent not in answers:
                said = self.members[agent].opening(ask)
                self.cohort.opening(agent, lie(said) if lie and agent == self.liar else said)
        add_masks(total, self.cohort.unmask(), self.ring)
        return set(ask.survivors), total.tobytes()

    def expected(self, survivors: set[str]) -> bytes:
        vectors = (vector_of(self.plain[a], self.weights[a], self.ring) for a in survivors)
        return sum(vectors, np.zeros(SIZE + 1, self.ring.word)).tobytes()


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 12), st.data())
def test_whoever_drops_out_and_when_the_sum_is_exact_or_there_is_none(
    count: int, data: st.DataObject
) -> None:
    """G4: at each of the four stages."""
    here = Round(count)
    gone: dict[str, set[str]] = {"keys": set(), "shares": set(), "updates": set(), "answers": set()}
    for agent in here.agents:
        stage = data.draw(st.sampled_from(["", "", "", *gone]), label=agent[:4])
        if stage:
            gone[stage].add(agent)
    try:
        here.share(keys=gone["keys"], shares=gone["shares"])
        survivors, total = here.finish(updates=gone["updates"], answers=gone["answers"])
    except ProtocolError as error:
        assert error.reason == "masking_small_cohort"
        roster = count - len(gone["keys"])
        cohort = roster - len(gone["shares"])
        least = survivors_needed(SPEC, roster, cohort)
        few = cohort - len(gone["updates"]) < least
        assert few or count - sum(map(len, gone.values())) < SPEC.shares_needed(roster)
        return
    assert len(survivors) >= 3
    assert total == here.expected(survivors)


def test_what_the_edge_has_of_one_update_looks_like_chance() -> None:
    here = Round(5)
    here.share()
    agent = here.agents[0]
    assert here.masked(agent).tobytes() != here.expected({agent})
    # Also once the sum is unmasked without it: a late update stays masked by its own seed.
    survivors, total = here.finish(updates={agent})
    assert total == here.expected(survivors)
    late = here.masked(agent)
    add_masks(late, [(key, -sign) for key, sign in here.members[agent].seeds()[1:]], here.ring)
    assert late.tobytes() != here.expected({agent})


def shared(count: int = 5) -> Round:
    here = Round(count)
    here.share()
    return here


def refused(reason: str, call: Callable[[], object]) -> None:
    with pytest.raises(ProtocolError) as caught:
        call()
    assert caught.value.reason == f"masking_{reason}"


def test_an_edge_cannot_ask_twice() -> None:
    here = shared()
    one = here.members[here.agents[0]]
    asked = here.cohort.survivors(frozenset(here.agents[:4]))
    assert one.opening(asked) is one.opening(asked)
    refused("second_survivors", lambda: one.opening(MaskAsk(survivors=tuple(here.agents))))
    refused(
        "small_cohort",
        lambda: shared_member(here, 1).opening(MaskAsk(survivors=tuple(here.agents[:2]))),
    )
    refused(
        "out_of_order",
        lambda: shared_member(here, 1).opening(MaskAsk(survivors=tuple(here.agents[2:]))),
    )
    other = MaskDelivery(shares=dict(list(here.cohort.delivery(one.agent).shares.items())[:3]))
    refused("second_cohort", lambda: one.delivery(other))


def shared_member(here: Round, index: int) -> Member:
    return here.members[here.agents[index]]


def test_an_edge_cannot_be_everybody() -> None:
    """Keys are signed by the identities whose ids they are, for this round alone."""
    here = Round(4)
    one = here.members[here.agents[0]]
    keys = {agent: member.keys().keys for agent, member in here.members.items()}
    others = here.agents[1:]
    forged = {**keys, others[0]: replace(keys[others[0]], mask=bytes(range(32)))}
    refused("bad_signature", lambda: one.roster(MaskRoster(members=forged)))
    swapped = {**keys, others[0]: keys[others[1]]}
    refused("same_key", lambda: one.roster(MaskRoster(members=swapped)))
    invented = {**keys, "0" * 32: device().keys().keys}
    refused("other_key", lambda: one.roster(MaskRoster(members=invented)))
    old = device(place=Place(PLACE.run, 6, PLACE.edge))
    replayed = {**keys, old.agent: old.keys().keys}
    refused("bad_signature", lambda: one.roster(MaskRoster(members=replayed)))
    mine = {**keys, one.agent: device().keys().keys}
    refused("other_key", lambda: one.roster(MaskRoster(members=mine)))
    few = dict(list(keys.items())[:2]) | {one.agent: keys[one.agent]}
    refused("small_cohort", lambda: one.roster(MaskRoster(members=dict(list(few.items())[:2]))))
    one.trusted = lambda agent, _keys: agent != others[0]
    refused("stranger", lambda: one.roster(MaskRoster(members=keys)))
    one.trusted = lambda *_: True
    first = one.roster(MaskRoster(members=keys))
    assert one.roster(MaskRoster(members=dict(keys))) is first
    del keys[others[0]]
    refused("second_roster", lambda: one.roster(MaskRoster(members=keys)))
    refused(
        "bad_signature",
        lambda: here.cohort.keys(
            one.agent, MaskKeys(keys=replace(keys[one.agent], seal=bytes(32)))
        ),
    )
