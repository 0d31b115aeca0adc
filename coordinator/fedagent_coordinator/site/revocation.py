"""Who belongs to the site and who was revoked, told to all that must let in or keep out."""

import asyncio
import functools
import logging
import sqlite3
import time
from pathlib import Path

from fedagent_coordinator.core.effects import Enrolled, WordRenewed
from fedagent_coordinator.errors import StoreDamagedError
from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_coordinator.site.folder import Site, renew_own
from fedagent_node.data_dir import Identity
from fedagent_node.effects import Revoked
from fedagent_node.errors import CredentialsError
from fedagent_node.shell import Shell
from fedagent_node.site.certificates import CertificateError
from fedagent_node.site.credentials import Credentials, load_credentials
from fedagent_node.site.reading import read_crl

_log = logging.getLogger(__name__)
LOOK_S = 1.0
"""How often the enrolments are looked at: the command line writes them."""


async def watch_members(shell: Shell, site: Site) -> None:
    """Tell the core who belongs to the site, and take every revocation into the site's list."""
    with Enrolment(shell.directory) as enrolment:
        member = shell.membership
        if member is not None and site.credentials.crl.exists():
            known = site.credentials.crl.read_bytes()
            shell.receive(Revoked(member.number, enrolment.revoked_ids(), known))
        seen = -1
        while member is not None:
            if (changes := enrolment.changes()) != seen:
                seen = changes
                shell.receive(_enrolled(enrolment))
            number, serials = enrolment.revocations()
            if number > member.number:
                out = enrolment.revoked_ids()
                await shell.take_revocations(site.authority.crl(serials, number, ids=out))
            await asyncio.sleep(LOOK_S)


def _enrolled(enrolment: Enrolment) -> Enrolled:
    return Enrolled(enrolment.agents(), enrolment.names())


def learn_list(folder: Path, edge: str, crl: bytes) -> None:
    """Take over a list of the revoked that an edge has shown; who watches members signs a newer.

    That the site's authority made it is enough: who is revoked is so for good.
    """
    try:
        held = load_credentials(folder)
        if held is None:
            return
        found = read_crl(crl, held.ca_der)
        with Enrolment(folder) as enrolment:
            fresh = enrolment.learn(found, now=time.time())
    except (CertificateError, CredentialsError, StoreDamagedError, sqlite3.Error) as error:
        _log.warning("the list of the revoked of edge %s is not taken over: %s", edge, error)
        return
    if fresh:
        _log.warning(
            "revocation list %d of edge %s is taken over: %d ids and certificates on it were not "
            "known here to be revoked, as after a restore from a backup",
            *(found.number, edge, fresh),
        )


async def renewed(shell: Shell, site: Site, identity: Identity, days: float) -> Credentials:
    """Give the coordinator its next certificate; nobody needs to be asked."""
    credentials = renew_own(shell.directory, site.authority, identity, days=days)
    # Not before the caller has taken it over.
    asyncio.get_running_loop().call_soon(shell.receive, WordRenewed())
    return credentials


def stay_member(shell: Shell, site: Site, identity: Identity, *, days: float) -> None:
    """Show the coordinator's own certificate, renew it, and watch who belongs to the site."""
    with Enrolment(shell.directory) as enrolment:
        shell.receive(_enrolled(enrolment))  # before any edge can name anybody
    shell.enrol(functools.partial(renewed, shell, site, identity, days))
    shell.spawn(watch_members(shell, site), "members")
