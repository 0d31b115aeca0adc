"""Shamir's secret sharing of 32 bytes, in the integers modulo 2^521 - 1 (CACM 1979)."""

import secrets
from collections.abc import Mapping
from functools import lru_cache

PRIME = 2**521 - 1
SECRET_BYTES = 32
SHARE_BYTES = 66


def split(secret: bytes, count: int, needed: int) -> list[bytes]:
    """Return shares for the places 1 to `count`, of which `needed` give the secret."""
    if len(secret) != SECRET_BYTES or not 1 <= needed <= count:
        raise ValueError("a secret of 32 bytes, and no more shares needed than there are")
    terms = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(needed - 1))]
    return [_value_at(place, terms).to_bytes(SHARE_BYTES) for place in range(1, count + 1)]


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of the shares at these places; `ValueError`: they give none.

    With fewer than were needed it is some other secret, or none.
    """
    secret = 0
    for factor, share in zip(_factors(tuple(shares)), shares.values(), strict=True):
        value = int.from_bytes(share)
        if value >= PRIME:
            raise ValueError("a share is no number of the field")
        secret = (secret + value * factor) % PRIME
    if secret >= 1 << (8 * SECRET_BYTES):
        raise ValueError("the shares do not belong together")
    return secret.to_bytes(SECRET_BYTES)


@lru_cache(maxsize=64)
def _factors(places: tuple[int, ...]) -> list[int]:
    """Return what the values at these places count in the value at 0 (Lagrange)."""
    found: list[int] = []
    for place in places:
        over, under = 1, 1
        for other in places:
            if other != place:
                over = over * other % PRIME
                under = under * (other - place) % PRIME
        found.append(over * pow(under, -1, PRIME) % PRIME)
    return found


def _value_at(place: int, terms: list[int]) -> int:
    value = 0
    for term in reversed(terms):
        value = (value * place + term) % PRIME
    return value
