"""What keeps an edge that lies from small sums: a cohort that its survivors signed, and a count.

A device gives shares for survivors alone who all signed the roster and the cohort that it knows
itself. As more than half of a roster must survive, any two answers name a common survivor, so all
answers are about one cohort. What is left to lie about is who of it survived, to each device
differently; `smallest_sum` bounds what comes of that (docs/privacy.md has the proof).
"""

import hashlib
from collections.abc import Collection

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedagent_task.recipe.spec import SecureAggregationSpec

from .errors import MaskingError
from .keys import Place

_AGREED = b"fedagent mask cohort 1\0"


def agreed_bytes(place: Place, cohort: Collection[str]) -> bytes:
    """Return what a device signs about the cohort whose masks it wears; `place` has a roster."""
    assert place.roster, "a cohort is one of a roster"
    names = "/".join(sorted(cohort)).encode()
    return _AGREED + place.salt + hashlib.sha256(names).digest()


def check_agreed(
    agent: str, identity: bytes, signature: bytes, place: Place, cohort: Collection[str]
) -> None:
    """Raise `MaskingError` unless a device has signed this roster and this cohort."""
    try:
        public = Ed25519PublicKey.from_public_bytes(identity)
        public.verify(signature, agreed_bytes(place, cohort))
    except (InvalidSignature, ValueError) as error:
        raise MaskingError("not_agreed", f"{agent[:12]} has not signed this cohort") from error


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
