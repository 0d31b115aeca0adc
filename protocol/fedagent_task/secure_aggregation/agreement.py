"""Whom a roster may name, and what keeps an edge that lies from small sums: a signed cohort.

Devices and their edge make the same checks of a roster: an edge that let in what devices refuse
would have its round voided by any one device.

A device gives shares for survivors alone who all signed the roster and the cohort that it knows
itself. As more than half of a roster must survive, any two answers name a common survivor, so all
answers are about one cohort. What is left to lie about is who of it survived, to each device
differently; `smallest_sum` bounds what comes of that (docs/privacy.md has the proof).
"""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from fedagent_protocol import signed
from fedagent_protocol.messages import MemberKeys
from fedagent_task.errors import MaskingError
from fedagent_task.recipe.spec import SecureAggregationSpec

from .keys import Place, check_strong, verify

_AGREED = b"fedagent mask cohort 1\0"
Trusted = Callable[[str, MemberKeys], bool]
"""Whether a device belongs to the site, as its certificate says."""


def anybody(_agent: str, _keys: MemberKeys) -> bool:
    """Trust all: there is no site whose certificates could be asked for."""
    return True


def check_keys(agent: str, keys: MemberKeys, place: Place, trusted: Trusted) -> None:
    """Raise `MaskingError` unless a device's keys may be on a roster."""
    verify(agent, keys, place)
    check_strong(keys.mask)
    check_strong(keys.seal)
    if not trusted(agent, keys):
        raise MaskingError("stranger", f"{agent[:12]} is not of this site")


def check_distinct(agent: str, keys: MemberKeys, others: Mapping[str, MemberKeys]) -> None:
    """Raise `MaskingError` if another device has the same mask key."""
    if any(known.mask == keys.mask for other, known in others.items() if other != agent):
        raise MaskingError("same_key", f"{agent[:12]} has the key of another device")


def bound(place: Place, spec: SecureAggregationSpec, members: Mapping[str, MemberKeys]) -> Place:
    """Return the place of a roster: under another one shares do not open, masks do not cancel."""
    known = hashlib.sha256()
    known.update(spec.shares_needed(len(members)).to_bytes(2))
    known.update(spec.minimum_cohort.to_bytes(2))
    for agent in sorted(members):
        known.update(agent.encode() + b"\0" + members[agent].mask + members[agent].seal)
    return replace(place, roster=known.digest())


def agreed_bytes(place: Place, cohort: Collection[str]) -> bytes:
    """Return what a device signs about the cohort whose masks it wears; `place` has a roster."""
    assert place.roster, "a cohort is one of a roster"
    names = "/".join(sorted(cohort)).encode()
    return _AGREED + place.salt + hashlib.sha256(names).digest()


def check_agreed(
    agent: str, identity: bytes, signature: bytes, place: Place, cohort: Collection[str]
) -> None:
    """Raise `MaskingError` unless a device has signed this roster and this cohort."""
    if not signed.verify(identity, signature, agreed_bytes(place, cohort)):
        raise MaskingError("not_agreed", f"{agent[:12]} has not signed this cohort")


def smallest_sum(cohort: int, survivors: int, needed: int, helpers: int = 0) -> int:
    """Return how many updates are at least in a sum that a lying edge can uncover.

    Each of the cohort answers once, and gives shares of at most `cohort - survivors` keys. A key
    takes `needed` of them. Only a device whose key is known can be taken out of the sum.

    `helpers` are devices of the edge's own, which give it all that they hold; only the others'
    updates count. It holds for fewer than `2 * needed` less the roster.
    """
    others = cohort - helpers
    return others - others * (cohort - survivors) // (needed - helpers)


def survivors_needed(spec: SecureAggregationSpec, roster: int, cohort: int) -> int:
    """Return how many must survive so that no sum of fewer than `minimum_cohort` is uncovered."""
    needed = spec.shares_needed(roster)
    least = max(spec.minimum_cohort, needed)
    while least < cohort and smallest_sum(cohort, least, needed) < spec.minimum_cohort:
        least += 1
    return least
