"""How a role comes to its credentials: by an invitation, or by a code that a person accepts."""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from fedagent_node.data_dir import Identity, write_private
from fedagent_node.discovery.advert import Advert
from fedagent_node.discovery.announcing import Discovery
from fedagent_node.effects import Emit
from fedagent_node.errors import JoinedElsewhereError, JoinError, JoinUnreachableError
from fedagent_node.network import Backoff
from fedagent_node.settings import NodeConfig
from fedagent_node.shell import Shell
from fedagent_node.site.certificates import fingerprint
from fedagent_node.site.credentials import (
    CRL_FILE,
    FOLDER,
    Credentials,
    Joined,
    load_credentials,
    read_joined,
    store_credentials,
    store_crl,
)
from fedagent_node.site.join_client import Admitted, Applicant, Waiting, ask
from fedagent_node.site.joining import LATER, Invitation, JoinRole
from fedagent_protocol.errors import safe_text

PENDING_FILE = "pending.json"
REFUSED_FILE = "refused.json"
POLL_S = 2.0
NEW_CODE_S = 30.0
"""A device shows no more codes than this: who stands between has few tries."""
REMIND_S = 60.0
QUIET_S = 8.0
"""How long no join service may be found before that is logged."""
MAX_PLACES = 32
_OTHERS = frozenset({"other_authority", "wrong_site", "malformed", "version", "bad_commitment"})
"""What somebody else may say: the site that is meant may still answer elsewhere."""
_log = logging.getLogger(__name__)
Kept = TypeVar("Kept", bound=msgspec.Struct)


class Shown(msgspec.Struct, frozen=True):
    """A code that is shown, kept over a restart."""

    code: str
    session: bytes
    fingerprint: str


class Told(msgspec.Struct, frozen=True):
    """Why a site did not let this role in, kept for the doctor."""

    site: str
    reason: str


class Joiner:
    """Asks join services until one lets this role in.

    `invitation` is what somebody was given: an invitation, HOST:PORT of a join service, or
    nothing; more services come by `seen`.
    """

    def __init__(
        self, shell: Shell, identity: Identity, role: JoinRole, config: NodeConfig, *, name: str
    ) -> None:
        self._shell = shell
        self._identity = identity
        self._role: JoinRole = role
        self._site = config.site
        self._name = name
        given = config.invitation()
        self._invitation = given if isinstance(given, Invitation) else None
        places = given.places if isinstance(given, Invitation) else (given,) if given else ()
        self._places = dict.fromkeys(places)
        self._news = asyncio.Event()
        self._shown = read_shown(shell.directory)
        self._code_at = -NEW_CODE_S
        self._reminded_at = 0.0
        self._said: set[str] = set()

    def seen(self, adverts: Iterable[Advert]) -> None:
        """Take in who announces a join service."""
        for advert in sorted(adverts, key=lambda one: one.id):
            if advert.join and advert.hosts and len(self._places) < MAX_PLACES:
                self._places.setdefault(f"{advert.address.host}:{advert.join}")
        if self._places:
            self._news.set()

    @property
    def asked(self) -> bool:
        """Whether a join service has taken the request: it is a person's turn."""
        return self._shown is not None

    async def run(self) -> Credentials:
        """Return the credentials, once they are stored.

        Raises:
            JoinError: The site does not let us in, for a reason that time does not mend.
        """
        try:
            return await self._until_admitted()
        except JoinError as error:
            told = msgspec.json.encode(Told(self._site, error.reason))
            write_private(self._shell.directory / FOLDER / REFUSED_FILE, told)
            raise

    async def _until_admitted(self) -> Credentials:
        backoff = Backoff(first_s=1.0, cap_s=10.0)
        while True:
            refusals = []
            for place in tuple(self._places):
                try:
                    admitted = await self._ask(place)
                except JoinUnreachableError as error:
                    self._say(error)
                    continue
                except JoinError as error:
                    self._weigh(error, place)
                    refusals.append(error)
                    continue
                if admitted is not None:
                    return self._keep(admitted, place)
            if self._invitation is not None and len(refusals) == len(self._places) > 0:
                raise refusals[0]
            await self._pause(POLL_S if self._shown is not None else backoff.next())

    def _weigh(self, error: JoinError, place: str) -> None:
        """Raise what is the site's own refusal; say the others."""
        if error.reason in LATER:
            self._say(error)
        elif error.reason not in _OTHERS:
            raise error
        else:
            _log.warning("%s: %s: %s", self._shell.id, place, error)
            if self._invitation is None:
                self._forget()

    async def _ask(self, place: str) -> Admitted | None:
        shown, invited = self._shown, self._invitation
        if invited is None and shown is None and time.monotonic() - self._code_at < NEW_CODE_S:
            return None
        applicant = Applicant(
            self._identity,
            self._role,
            self._site,
            self._name,
            fingerprint=invited.fingerprint.hex()
            if invited
            else shown.fingerprint
            if shown
            else "",
            secret=invited.secret if invited is not None else b"",
            session=shown.session if shown is not None else b"",
        )
        answer = await ask(place, applicant)
        if isinstance(answer, Admitted):
            return answer
        self._wait(answer)
        return None

    def _wait(self, waiting: Waiting) -> None:
        now = time.monotonic()
        if waiting.code:
            self._code_at = now
            self._shown = Shown(waiting.code, waiting.session, waiting.fingerprint)
            path = self._shell.directory / FOLDER / PENDING_FILE
            write_private(path, msgspec.json.encode(self._shown))
        elif now - self._reminded_at < REMIND_S:
            return
        assert self._shown is not None
        self._reminded_at, code = now, self._shown.code
        self._shell.emit(Emit("joining", {"site": self._site, "code": code}))
        _log.warning(
            "%s: waiting to be accepted to site %s with code %s %s; compare the code, then run "
            "at the coordinator: `fedagent devices accept %s`",
            *(self._shell.id, self._site, code[:3], code[3:], code),
        )

    def _keep(self, admitted: Admitted, place: str) -> Credentials:
        places = dict.fromkeys((place, *admitted.services))
        found = _store(self._shell.directory, self._identity, admitted, places)
        self._forget()
        self._shell.emit(Emit("joined", {"site": self._site, "at": place}))
        _log.info(
            "%s: joined site %s as %s, authority %s",
            *(self._shell.id, self._site, self._role, fingerprint(admitted.ca_der)[:16]),
        )
        return found

    def _forget(self) -> None:
        self._shown = None
        for name in (PENDING_FILE, REFUSED_FILE):
            (self._shell.directory / FOLDER / name).unlink(missing_ok=True)

    def _say(self, error: Exception) -> None:
        """Log an error once: it is tried again."""
        if str(error) not in self._said and len(self._said) < MAX_PLACES:
            self._said.add(str(error))
            _log.warning("%s: %s; trying again", self._shell.id, error)

    async def _pause(self, seconds: float) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(seconds if self._places else None):
                await self._news.wait()
        except TimeoutError:
            return


async def join_first(
    shell: Shell, identity: Identity, role: JoinRole, config: NodeConfig, *, name: str, must: bool
) -> None:
    """Join the site before anything else, where that was asked for, or must be.

    Returns when this role has its credentials, needs none, or the process is to stop.

    Raises:
        JoinError, JoinedElsewhereError: It is not let in.
    """
    credentials = load_credentials(shell.directory)
    given = config.invitation()
    if credentials is not None:
        if isinstance(given, Invitation) and given.fingerprint.hex() != fingerprint(
            credentials.ca_der
        ):
            site = credentials.certificate.site
            raise JoinedElsewhereError(shell.directory / FOLDER, site)
        await _renew_if_due(shell, identity, credentials)
        return
    if config.tls is not None or not (given or must):
        return
    joiner = Joiner(shell, identity, role, config, name=name)
    await _run_until_stopped(shell, joiner, config)


async def _run_until_stopped(shell: Shell, joiner: Joiner, config: NodeConfig) -> None:
    discovery = Discovery(
        config.site, scope="loopback" if config.discovery == "loopback" else "lan"
    )
    joining = asyncio.create_task(joiner.run(), name="join")
    stopping = asyncio.create_task(shell.stop.wait(), name="stop")
    try:
        done, _ = await asyncio.wait(
            {joining, stopping}, timeout=1.0, return_when="FIRST_COMPLETED"
        )
        if not done and config.discovery != "off":
            await discovery.start()
            for wanted in ("coordinator", "edge"):
                discovery.browse(wanted, joiner.seen)
            done, _ = await asyncio.wait(
                {joining, stopping}, timeout=QUIET_S, return_when="FIRST_COMPLETED"
            )
        if not done and not joiner.asked:
            _log.warning(
                "%s: not in site %s yet; if zeroconf does not find the join service, give it: "
                "--join HOST:PORT, or an invitation",
                *(shell.id, config.site),
            )
        if not done:
            await asyncio.wait({joining, stopping}, return_when="FIRST_COMPLETED")
        if joining.done():
            joining.result()
    finally:
        for task in (joining, stopping):
            task.cancel()
        await asyncio.gather(joining, stopping, return_exceptions=True)
        await discovery.stop()


async def renew(directory: Path, identity: Identity, *, places: Sequence[str] = ()) -> Credentials:
    """Ask for the next certificate, and keep it; `places` are more join services to try.

    Raises:
        JoinError: The site refuses; ``revoked`` is for good.
        JoinUnreachableError: No join service answers.
    """
    credentials, joined = load_credentials(directory), read_joined(directory)
    if credentials is None or joined is None:
        raise JoinUnreachableError("an unknown address", "this role has not joined a site")
    own = credentials.certificate
    if own.role not in ("agent", "edge"):
        raise JoinError("wrong_role")
    applicant = Applicant(
        identity,
        "edge" if own.role == "edge" else "agent",
        own.site,
        joined.name,
        fingerprint=joined.fingerprint,
    )
    failure: JoinError | JoinUnreachableError | None = None
    for place in dict.fromkeys((*joined.services, *places)):
        try:
            answer = await ask(place, applicant)
        except JoinUnreachableError as error:
            failure = failure or error
            continue
        except JoinError as error:
            if error.reason not in _OTHERS:
                raise
            failure = failure or error
            continue
        if isinstance(answer, Admitted):
            return _store(directory, identity, answer, dict.fromkeys((place, *answer.services)))
        failure = JoinError("forgotten")
    raise failure or JoinUnreachableError("an unknown address", "no address is known")


async def _renew_if_due(shell: Shell, identity: Identity, credentials: Credentials) -> None:
    now = credentials.judged_time()
    if now is None or now < credentials.certificate.not_after:
        return  # while it holds, it is renewed beside the work
    try:
        await renew(shell.directory, identity)
    except JoinUnreachableError as error:
        _log.warning("%s: the certificate has expired and is not renewed yet: %s", shell.id, error)


def _store(
    directory: Path, identity: Identity, admitted: Admitted, places: Iterable[str]
) -> Credentials:
    joined = Joined(
        site=admitted.certificate.site,
        fingerprint=fingerprint(admitted.ca_der),
        services=tuple(places)[:16],
        name=safe_text(admitted.name, limit=64),
    )
    if admitted.crl and not (directory / FOLDER / CRL_FILE).exists():
        # Before a broker starts: mosquitto reads a list anew, but not that there is one.
        store_crl(directory, admitted.crl)
    return store_credentials(directory, identity, admitted.certificate, admitted.ca_der, joined)


def read_shown(directory: Path) -> Shown | None:
    """Return the code that a role shows while it waits, None if it shows none."""
    return _read(directory / FOLDER / PENDING_FILE, Shown)


def read_refusal(directory: Path) -> JoinError | None:
    """Return why a role was not let in when it asked last, None if it was or never asked."""
    told = _read(directory / FOLDER / REFUSED_FILE, Told)
    return None if told is None else JoinError(safe_text(told.reason, limit=64))


def _read(path: Path, wanted: type[Kept]) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=wanted)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
