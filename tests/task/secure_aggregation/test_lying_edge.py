"""What an edge learns that shows each device another roster, cohort, or set of survivors."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import MaskAsk, MaskDelivery, MaskOpening, MaskRoster, MaskShares
from fedagent_task.recipe.spec import SecureAggregationSpec
from fedagent_task.secure_aggregation.keys import smallest_sum, survivors_needed
from fedagent_task.secure_aggregation.member import Member
from fedagent_task.secure_aggregation.ring import ring_of

from .test_protocol import device

SPEC = SecureAggregationSpec(minimum_cohort=5)  # with the threshold that recipes have by default
RING = ring_of(SPEC, 1)
Shown = Mapping[str, Collection[str]]
"""Whom each device is shown."""


@dataclass
class LyingEdge:
    """Says to each device what suits it, and keeps all that comes back."""

    count: int
    members: dict[str, Member] = field(init=False)
    shares: dict[str, MaskShares] = field(default_factory=dict)
    openings: dict[str, MaskOpening] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = sorted((device(SPEC) for _ in range(self.count)), key=lambda one: one.agent)
        self.members = {one.agent: one for one in made}

    @property
    def agents(self) -> list[str]:
        return list(self.members)

    def rosters(self, shown: Shown) -> None:
        for agent, who in shown.items():
            named = {one: self.members[one].keys().keys for one in who}
            self.shares[agent] = self.members[agent].roster(MaskRoster(members=named))

    def cohorts(self, shown: Shown) -> None:
        for agent, who in shown.items():
            sealed, checks = dict[str, bytes](), dict[str, bytes]()
            for one in who:
                made = self.shares.get(one, MaskShares(shares={}, commitment=bytes(32)))
                if one != agent:
                    sealed[one] = made.shares.get(agent, bytes(148))
                    checks[one] = made.checks.get(agent, bytes(64))
            self._ask(agent, MaskDelivery(shares=sealed, checks=checks))

    def survivors(self, shown: Shown) -> None:
        agreed = {a: one.agreement() for a, one in self.members.items() if one.ready}
        for agent, who in shown.items():
            self._ask(agent, MaskAsk(survivors=tuple(who), agreed=agreed))

    def _ask(self, agent: str, message: MaskDelivery | MaskAsk) -> None:
        try:
            if isinstance(message, MaskAsk):
                self.openings[agent] = self.members[agent].opening(message)
            else:
                self.members[agent].delivery(message)
        except ProtocolError as error:
            self.refusals[agent] = error.reason

    def updates(self) -> set[str]:
        """Return whose updates leave their devices."""
        return {agent for agent, one in self.members.items() if one.ready}


def test_a_roster_for_each_device_uncovers_nothing() -> None:
    """A's roster is A and the B's; the B's see A and the C's; only the C's see everybody.

    The C's would give the keys of the B's, A and two B's the seed of A: its update, bit for bit.
    """
    edge = LyingEdge(10)
    a, *others = edge.agents
    bs, cs, ds = others[:4], others[4:7], others[7:]
    shown = {
        a: [a, *bs],
        **{b: [b, a, *cs] for b in bs},
        **{c: [*cs, *bs, a, *ds] for c in cs},
    }
    edge.rosters(shown)
    edge.cohorts(shown)
    assert set(edge.refusals.values()) == {"masking_other_roster"}
    assert edge.refusals.keys() == shown.keys()
    edge.survivors({a: [a, *bs], **{c: [*cs, a, *ds] for c in cs}})
    assert (edge.updates(), edge.openings) == (set(), {})


def test_a_cohort_for_each_device_uncovers_nothing() -> None:
    """One device wears the masks of six alone, whose keys the others would give away.

    But it has signed this cohort and they another, so that nobody opens.
    """
    edge = LyingEdge(10)
    edge.rosters(dict.fromkeys(edge.agents, edge.agents))
    victim, *rest = edge.agents
    out, kept = rest[:6], rest[6:]
    edge.cohorts({**dict.fromkeys(rest, edge.agents), victim: [victim, *out]})
    assert edge.updates() == {*edge.agents}, "no device sees it alone"
    edge.survivors(
        {
            victim: [victim, *out],
            **{one: [one, victim, *kept, *[o for o in out if o != one][:2]] for one in out},
            **{one: [*kept, victim, *out[:3]] for one in kept},
        }
    )
    assert edge.openings == {}
    assert set(edge.refusals.values()) == {"masking_not_agreed"}


# ------------------------------------------------------------- the bound, by brute force


def by_brute_force(cohort: int, survivors: int, needed: int, helpers: int = 0) -> int:
    """Return the smallest sum over all that an edge can say to each device about survivors.

    The last of the cohort are the edge's own `helpers`, and give it shares of everything.
    """
    honest, needed = cohort - helpers, needed - helpers
    lacking = {(0,) * honest}
    for agent in range(honest):
        others = [other for other in range(honest) if other != agent]
        most = min(cohort - survivors, len(others))
        left_out = [set(some) for size in range(most + 1) for some in combinations(others, size)]
        lacking = {
            tuple(times + (place in some) for place, times in enumerate(before))
            for before in lacking
            for some in left_out
        }
    return min(
        sum(times < needed for times in found)
        for found in lacking
        if all(times >= needed or honest - times >= needed for times in found)
    )


def small_cases() -> Iterator[tuple[int, int, SecureAggregationSpec]]:
    for roster, threshold in product((3, 4, 5, 6), (0.51, 0.6, 0.7, 0.9)):
        for minimum in range(3, roster + 1):
            spec = SecureAggregationSpec(minimum_cohort=minimum, threshold=threshold)
            for cohort in range(max(minimum, spec.shares_needed(roster)), roster + 1):
                yield roster, cohort, spec


def test_no_lie_about_survivors_uncovers_fewer_than_the_minimum() -> None:
    worst: dict[tuple[int, int, int], int] = {}
    for roster, cohort, spec in small_cases():
        needed = spec.shares_needed(roster)
        survivors = survivors_needed(spec, roster, cohort)
        case = cohort, survivors, needed
        if case not in worst:
            worst[case] = by_brute_force(*case)
        assert worst[case] >= smallest_sum(*case) >= spec.minimum_cohort
    assert len(worst) >= 10


def test_devices_of_the_edges_own_uncover_no_smaller_sum_than_is_documented() -> None:
    cases = 0
    for roster, cohort, spec in small_cases():
        needed = spec.shares_needed(roster)
        survivors = survivors_needed(spec, roster, cohort)
        for helpers in range(1, min(needed, 2 * needed - roster)):
            case = cohort, survivors, needed, helpers
            assert by_brute_force(*case) >= smallest_sum(*case)
            cases += 1
    assert cases >= 10
    needed = SPEC.shares_needed(20)
    assert (smallest_sum(10, 7, 6, helpers=1), smallest_sum(20, needed, needed, helpers=3)) == (
        4,
        2,
    )
    needed = SecureAggregationSpec(threshold=0.8).shares_needed(20)
    assert smallest_sum(20, needed, needed, helpers=3) == 12


Cohorts = Sequence[frozenset[int]]


def test_whatever_cohort_each_device_is_shown_no_fewer_than_the_minimum_are_uncovered() -> None:
    """All that an edge can say to four devices, and much of what it can say to six."""
    whole, spec = frozenset(range(4)), SecureAggregationSpec(minimum_cohort=3)
    shown = [_subsets(whole, agent, 3) for agent in whole]
    found: set[int] = set()
    for cohorts in product(*shown):
        for asked in product(*(_allowed(cohorts, agent, spec) for agent in whole)):
            found |= uncovered(cohorts, asked, needed=3)
    assert min(found) == 3

    rng, whole = random.Random(1), frozenset(range(6))
    for _ in range(1000):
        two = rng.choices(_subsets(whole, 0, 4), k=2)
        cohorts = tuple(rng.choice(two) | {agent} for agent in whole)
        asked = tuple(rng.choice(_allowed(cohorts, agent, spec)) for agent in whole)
        assert min(uncovered(cohorts, asked, needed=4), default=3) >= 3


def _subsets(whole: frozenset[int], agent: int, least: int) -> list[frozenset[int]]:
    others = sorted(whole - {agent})
    sizes = range(least - 1, len(others) + 1)
    return [frozenset({agent, *some}) for size in sizes for some in combinations(others, size)]


def _allowed(cohorts: Cohorts, agent: int, spec: SecureAggregationSpec) -> Cohorts:
    """Return the sets of survivors that a device answers for; an empty one is no answer."""
    cohort = cohorts[agent]
    least = survivors_needed(spec, len(cohorts), len(cohort))
    found = _subsets(cohort, agent, least)
    return [s for s in found if all(cohorts[one] == cohort for one in s)] or [frozenset()]


def uncovered(cohorts: Cohorts, asked: Cohorts, needed: int) -> set[int]:
    """Return the sizes of the smallest sums: of updates whose masks cancel or are known."""
    seeds, keys = [0] * len(cohorts), [0] * len(cohorts)
    for cohort, survivors in zip(cohorts, asked, strict=True):
        for agent in cohort if survivors else ():
            (seeds if agent in survivors else keys)[agent] += 1
    left = [{one for one in cohort if keys[one] < needed} for cohort in cohorts]
    sizes: set[int] = set()
    for first in range(len(cohorts)):
        inside, waiting = set[int](), {first}
        while waiting:
            inside |= waiting
            waiting = {one for agent in waiting for one in left[agent]} - inside
        cancel = all(agent in cohorts[one] for agent in inside for one in left[agent])
        if cancel and all(seeds[agent] >= needed for agent in inside):
            sizes.add(len(inside))
    return sizes
