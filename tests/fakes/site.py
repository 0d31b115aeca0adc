"""A site with its authority, and members with the files that joining leaves."""

from pathlib import Path
from typing import Self

from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_coordinator.site.standing import open_site
from fedagent_node.data_dir import Identity, load_or_create
from fedagent_node.site.authority import Authority
from fedagent_node.site.certificates import Certificate, Role, fingerprint
from fedagent_node.site.credentials import Joined, store_credentials, store_crl
from fedagent_node.site.membership import Membership


def joined_at(
    folder: Path, who: Identity, made: Certificate, ca_der: bytes, *services: str, name: str = ""
) -> None:
    """Leave in a directory what joining leaves there."""
    mark = fingerprint(ca_der)
    joined = Joined(site=made.site, fingerprint=mark, services=services, name=name)
    store_credentials(folder, who, made, ca_der, joined)


def ident(member: Membership) -> str:
    """Return a member's id."""
    return member.credentials.certificate.id


class Members:
    """Who belongs to a site; each keeps a data directory below `folder`."""

    def __init__(self, folder: Path, site: str = "home") -> None:
        self.folder = folder
        self.site = site
        self.home: Path | None = None
        self.authority = Authority.create(folder / "authority", site)

    @classmethod
    def of_coordinator(cls, folder: Path, name: str, site: str) -> Self:
        """Return the site that a coordinator founded in its directory."""
        found = cls.__new__(cls)
        found.folder, found.site = folder, site
        found.authority = open_site(folder / name, site).authority
        found.home = folder / name
        return found

    def member(
        self,
        name: str,
        role: Role,
        *,
        days: float = 30.0,
        now: float | None = None,
    ) -> Membership:
        """Give somebody a certificate; the one they have is replaced."""
        folder = self.folder / name
        identity = load_or_create(folder)
        made = self.authority.issue(identity.public_bytes, role, days, now=now)
        joined_at(folder, identity, made, self.authority.der)
        self.revoke(name)
        if self.home is not None:
            with Enrolment(self.home) as enrolment:
                enrolment.admit(identity.public_bytes, role, name, now=0.0)
        found = Membership.of(folder)
        assert found is not None
        return found

    def revoke(self, at: str, *who: Membership) -> None:
        """Write the list of the revoked that somebody knows."""
        gone = [one.credentials.certificate for one in who]
        crl = self.authority.crl(
            {one.serial for one in gone}, len(gone), ids={one.id for one in gone}
        )
        store_crl(self.folder / at, crl)
