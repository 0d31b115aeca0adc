"""Who asks to join the site, and letting one in."""

import time
from pathlib import Path

from fedagent_coordinator.enrolment import DATABASE, Enrolment
from fedagent_coordinator.picture.records import Waiting


def has_site(folder: Path) -> bool:
    """Return whether anybody can join here."""
    return (folder / DATABASE).exists()


def waiting(folder: Path, now: float) -> tuple[Waiting, ...]:
    """Return who waits, with the codes.

    Raises:
        CoordinatorError, sqlite3.Error, OSError: The site cannot be read.
    """
    if not has_site(folder):
        return ()
    with Enrolment(folder) as enrolment:
        members = enrolment.members(now=now)
    return tuple(
        Waiting(
            id=one.id,
            name=one.name,
            role=one.role,
            code=one.code,
            address=one.address,
            software=one.software,
            since_s=one.since_s,
        )
        for one in members
        if one.state == "pending"
    )


def accept(folder: Path, code: str, ident: str) -> None:
    """Let one in by the code that it shows.

    Raises:
        CoordinatorError: It does not wait, or shows another code.
    """
    with Enrolment(folder) as enrolment:
        enrolment.accept(code, ident, now=time.time())
