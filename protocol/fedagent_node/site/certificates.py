"""Certificates of a site: who somebody is and which role they play.

X.509 over the Ed25519 key that each role has already. The subject's common name is what begins
the role's topics, its organisation the site; there are no addresses, so a network may change.
`authority` issues them, `reading` reads them.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Literal, get_args

Role = Literal["agent", "edge", "coordinator", "broker"]

ROLES: tuple[Role, ...] = get_args(Role)
RENEW_AT = 2 / 3
"""Share of its life after which a certificate is renewed."""
CLOCK_S = 3600.0
"""A clock that differs by more from the coordinator's is wrong, whichever of the two it is."""
LETTERS: dict[str, Role] = {role[0]: role for role in ROLES}


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whose key it is, in which role and site, and how long; times are seconds since 1970."""

    id: str
    role: Role
    site: str
    public: bytes
    serial: int
    not_before: float
    not_after: float
    der: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """Its common name: the user name at a broker."""
        return common_name(self.role, self.id)

    @property
    def renew_at(self) -> float:
        """When to ask for the next one."""
        return self.not_before + RENEW_AT * (self.not_after - self.not_before)

    def serves(self, now: float) -> bool:
        """Return whether it is valid, and needs no renewal yet."""
        return self.not_before <= now < self.renew_at


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Serials that the authority took back, and ids of their owners; the highest `number` holds.

    An id is out with whatever certificate it has: after a restore the authority may have forgotten
    some.
    """

    number: int
    serials: frozenset[int]
    ids: frozenset[str] = frozenset()

    def has(self, certificate: Certificate) -> bool:
        """Return whether a certificate, or its owner, was revoked."""
        return certificate.serial in self.serials or certificate.id in self.ids


def common_name(role: Role, ident: str) -> str:
    """Return the common name of somebody's certificate."""
    return f"{role[0]}/{ident}"


def fingerprint(ca_der: bytes) -> str:
    """Return the SHA-256 of an authority's certificate, 64 hex digits."""
    return hashlib.sha256(ca_der).hexdigest()
