"""Whom a roster may name: what devices and their edge check alike.

An edge that let in what devices refuse would have its round voided by any one device.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from fedagent_protocol.messages import MemberKeys
from fedagent_task.recipe.spec import SecureAggregationSpec

from .errors import MaskingError
from .keys import Place, check_strong, verify

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
