"""The site at its coordinator: its authority, its own certificate and word, who belongs to it."""

import asyncio
import functools
import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedagent_coordinator.core.effects import Enrolled, WordRenewed
from fedagent_coordinator.errors import RefusedError, StoreDamagedError
from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_node.data_dir import Identity, load_or_create
from fedagent_node.effects import Revoked
from fedagent_node.errors import CredentialsError
from fedagent_node.shell import Shell
from fedagent_node.site import FOLDER
from fedagent_node.site.authority import CA_FILE, DAYS, Authority
from fedagent_node.site.certificates import fingerprint
from fedagent_node.site.credentials import (
    CRL_FILE,
    Credentials,
    Joined,
    load_credentials,
    store_credentials,
    store_crl,
)
from fedagent_node.site.reading import read_crl
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import MAX_AGENTS, Digest, RunId, TaskClaim
from fedagent_protocol.signed import Assigning, Calling, Vouching, task_of_run

_log = logging.getLogger(__name__)
CLAIM_S = 7 * 86_400
"""How long a word on a task is good: that of an old run is of no use, and clocks may differ."""
WORD_S = 86_400.0
"""How often the word on the task is signed anew, while the last one is good for days."""
CLOCK_LOOK_S = 60.0
"""How often it is looked whether the word is to be signed anew."""
JUMP_S = 60.0
"""A clock that was moved by more was set: what was signed by the former time may have ended."""
LOOK_S = 1.0
"""How often the enrolments are looked at: the command line writes them."""


@dataclass(frozen=True, slots=True)
class Site:
    """A site's authority, and what the coordinator holds of it like every other role."""

    data_dir: Path
    name: str
    authority: Authority
    credentials: Credentials

    def own(self) -> Credentials:
        """Return the coordinator's credentials as they are on disk now: they are renewed."""
        return load_credentials(self.data_dir) or self.credentials


def open_site(data_dir: Path, site: str, *, days: float = DAYS, now: float | None = None) -> Site:
    """Return the site kept in a coordinator's directory, founded there at the first start.

    Raises:
        CredentialsError: The files are damaged.
        RefusedError: The directory's authority is of another site.
    """
    folder = data_dir / FOLDER
    if (folder / CA_FILE).exists():
        authority = Authority.load(folder)
    else:
        authority = Authority.create(folder, site)
    if authority.site != site:
        hint = "give the same --site as before, or choose another --data-dir for another site"
        raise RefusedError(
            f"--site: this data directory belongs to site {authority.site!r}, not to {site!r}",
            hint,
        )
    identity = load_or_create(data_dir)
    credentials = load_credentials(data_dir)
    if not (folder / CRL_FILE).exists():
        store_crl(data_dir, authority.crl((), 0))
    now = time.time() if now is None else now
    if credentials is None or not credentials.certificate.serves(now):
        credentials = renew_own(data_dir, authority, identity, days=days, now=now)
    return Site(data_dir, site, authority, credentials)


def renew_own(
    data_dir: Path,
    authority: Authority,
    identity: Identity,
    *,
    days: float = DAYS,
    now: float | None = None,
) -> Credentials:
    """Give the coordinator a new certificate, in place of the one it has."""
    held, public = load_credentials(data_dir), identity.public_bytes
    before = None if held is None else held.certificate
    certificate = authority.issue(public, "coordinator", days, now=now, before=before)
    joined = Joined(site=authority.site, fingerprint=fingerprint(authority.der))
    return store_credentials(data_dir, identity, certificate, authority.der, joined)


class SiteWord(Vouching):
    """Signs for a site; `certificate` gives the coordinator's own as it is now, DER."""

    def __init__(
        self,
        identity: Identity,
        site: str,
        certificate: Callable[[], bytes],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._identity = identity
        self._site = site
        self._certificate = certificate
        self._clock = clock
        # An order is repeated until its report comes.
        self._signed = functools.lru_cache(maxsize=MAX_AGENTS)(identity.sign)

    def task(self, run: RunId, task: Digest) -> TaskClaim | None:
        """Return its word that a task is that of a run."""
        until_s = int(self._clock()) + CLAIM_S
        signature = self._identity.sign(task_of_run(self._site, run, task, until_s))
        return TaskClaim(certificate=self._certificate(), until_s=until_s, signature=signature)

    def sign(self, made: Assigning | Calling) -> bytes:
        """Return its signature that an agent is to train in a round, or of a call."""
        return self._signed(made.statement(self._site))


async def keep_word(shell: Shell) -> None:
    """Have the word on the task signed anew before the last one ends, also by a clock set since."""
    wall, steady = time.time(), time.monotonic()
    while True:
        await asyncio.sleep(CLOCK_LOOK_S)
        passed = time.monotonic() - steady
        if passed >= WORD_S or abs(time.time() - wall - passed) > JUMP_S:
            wall, steady = time.time(), time.monotonic()
            shell.receive(WordRenewed())


def own_certificate(shell: Shell) -> Callable[[], bytes] | None:
    """Return what gives the coordinator's certificate, also of a site that it does not serve now.

    On loopback its own broker is plain; its edges may have devices that ask for its word.
    """
    if shell.membership is not None:
        return shell.membership.own
    try:
        held = load_credentials(shell.directory) if shell.tls is None else None
    except CredentialsError:
        return None  # it is in use nowhere else
    return None if held is None else lambda: held.certificate.der


async def watch_members(shell: Shell, site: Site) -> None:
    """Tell the core who belongs to the site, and take every revocation into the site's list."""
    with Enrolment(shell.directory) as enrolment:
        member = shell.membership
        if member is not None and site.credentials.crl.exists():
            known = site.credentials.crl.read_bytes()
            shell.receive(Revoked(member.list.number, enrolment.revoked().ids, known))
        seen = -1
        while member is not None:
            if (changes := enrolment.changes()) != seen:
                seen = changes
                shell.receive(_enrolled(enrolment))
            out = enrolment.revoked()
            if out.number > member.list.number:
                await shell.take_revocations(
                    site.authority.crl(out.serials, out.number, ids=out.ids)
                )
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
    except (ProtocolError, CredentialsError, StoreDamagedError, sqlite3.Error) as error:
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
