"""The site of a coordinator that is restored from a backup, and what came after that."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from fedagent_coordinator.backup import back_up
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_coordinator.site.standing import Site, open_site
from fedagent_node.data_dir import load_or_create
from fedagent_node.site.certificates import Certificate, Role

DAY_S = 86_400.0


@dataclass
class Lost:
    """A site with members, and its backup; `held` are their newest certificates by name."""

    folder: Path
    copy: Path
    held: dict[str, Certificate] = field(default_factory=dict)

    @classmethod
    def backed_up(cls, place: Path) -> Self:
        """Return a site with an edge whose certificate is to be renewed, and its backup."""
        made = cls(place / "data", place / "copy")
        with Books(made.folder, identity=load_or_create(made.folder)) as store:
            store.note("one")
        made.certify("hall", "edge", at=time.time() - 21 * DAY_S)
        back_up(made.folder, made.copy)
        return made

    def site(self) -> Site:
        return open_site(self.folder, "home")

    def certify(self, name: str, role: Role = "agent", *, at: float) -> str:
        """Give a member a certificate, the next one if it has one; return its id."""
        who = load_or_create(self.folder.parent / name)
        made = self.site().authority.issue(who.public_bytes, role, now=at)
        with Enrolment(self.folder) as enrolment:
            enrolment.admit(who.public_bytes, role, name, now=at)
            enrolment.issued(made, now=at)
        self.held[name] = made
        return who.id

    def revoke(self, ident: str, *, at: float) -> frozenset[int]:
        """Revoke a member; return the serials on the list."""
        with Enrolment(self.folder) as enrolment:
            enrolment.revoke(ident, now=at)
            return enrolment.revoked().serials
