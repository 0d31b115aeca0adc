"""A role's standing in its site while it runs: TLS between members, renewal, and who was revoked.

There are no host names: a certificate names an identity, and what an address leads to is
judged by the role, the site and the id in the certificate, before a byte of MQTT is sent.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedagent_node.address import TlsFiles
from fedagent_node.envelope import EnvelopeError, Refusal
from fedagent_node.errors import LinkError, PeerRefusedError
from fedagent_node.network import Backoff, in_step
from fedagent_node.site.certificates import (
    CLOCK_S,
    LETTERS,
    Certificate,
    Role,
)
from fedagent_node.site.credentials import Credentials, load_credentials, store_crl
from fedagent_node.site.reading import read_certificate, read_crl
from fedagent_protocol.errors import FedagentError, ProtocolError, safe_text

NO_CHECK_TIME = 0x200000
"""``X509_V_FLAG_NO_CHECK_TIME`` of OpenSSL, which the module `ssl` does not name."""
LOOK_S = 60.0
"""How often it is looked whether to renew: clocks are set, and laptops sleep."""
SELDOM_S = 6 * 3600.0
"""How often it is asked at least while there is no answer."""
START_S = 5.0
"""Within this it is asked first: after power returns, not all at once."""
MOST_ANSWERS, WITHIN_S = 3, 3600.0
"""However clocks are set, it is asked no more often than that."""
_log = logging.getLogger(__name__)

Renew = Callable[[], Awaitable[Credentials]]
"""Asks for the next certificate and keeps it; raises `FedagentError` if there is none now."""


async def _nothing(_revoked: frozenset[str]) -> None:
    pass


class Membership:
    """What a member of a site shows and asks for, and what becomes of its files.

    TLS contexts are made of the files as they are at each call: a renewed certificate, or a newer
    list of revocations, holds from the next connection on.
    """

    def __init__(self, data_dir: Path, credentials: Credentials) -> None:
        self._data_dir = data_dir
        self.credentials = credentials
        self.list = credentials.revocations()
        self._answered: tuple[float, float] | None = None
        """What the coordinator's clock showed at its last answer, and ours that nobody sets."""
        self._doubted = credentials.certificate.role != "coordinator"
        self.asked: Callable[[str], bool] = lambda _link: False
        """Says whether only members can be on a link; for the gate."""
        self.on_change: Callable[[frozenset[str]], Awaitable[None]] = _nothing
        """Called after the files changed, with who is revoked now."""

    @classmethod
    def of(cls, data_dir: Path) -> Self | None:
        """Return the standing of who keeps `data_dir`; None before it joined a site."""
        held = load_credentials(data_dir)
        return None if held is None else cls(data_dir, held)

    def _reload(self) -> None:
        self.credentials = load_credentials(self._data_dir) or self.credentials
        self.list = self.credentials.revocations()

    @property
    def files(self) -> TlsFiles:
        """The files of a broker of our own."""
        own = self.credentials
        return TlsFiles(own.ca, own.cert, own.key, own.crl, ssl.TLSVersion.TLSv1_3)

    def client_context(self) -> ssl.SSLContext:
        """Return a context that shows our certificate and checks the other's, but for its id."""
        context = self.files.loaded(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        now = self.now()
        if now is None or abs(time.time() - now) > CLOCK_S:
            # OpenSSL knows this machine's clock only. The rest is checked, and the times by `read`.
            context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
        return context

    def now(self) -> float | None:
        """Return the coordinator's time, by which certificates are judged; None: it is not known.

        It is what the coordinator answered, whoever sets our clock since; before that what our
        clock shows, unless it is seen to be wrong.
        """
        if self._answered is None:
            return self.credentials.judged_time()
        shown, then = self._answered
        return shown + time.monotonic() - then

    def doubt(self) -> None:
        """Ask for the coordinator's time again: by ours somebody's certificate or word ended."""
        self._doubted = self.credentials.certificate.role != "coordinator"

    @property
    def _wanted(self) -> bool:
        """Whether to ask for the next certificate, or for the time."""
        now, held = self.now(), self.credentials
        if self._answered is not None and abs(time.time() - held.ahead_s - (now or 0)) > CLOCK_S:
            self.doubt()  # our clock was set
        return self._doubted or now is None or not held.certificate.serves(now)

    def towards(
        self,
        *roles: Role,
        ids: Callable[[], Collection[str]] = tuple,
        elsewhere: Callable[[str], str] = lambda _: "",
    ) -> "Towards":
        """Return what covers a link to one of these roles; without ids, to any of the site.

        `elsewhere` is the address of another link to an identity: a broker has one session of
        ours, and two links to it would take each other's place.
        """
        return Towards(self, roles, ids, elsewhere)

    def own(self) -> bytes:
        """Return this process's certificate."""
        return self.credentials.certificate.der

    def read(self, der: bytes) -> Certificate:
        """Return a certificate that is valid now; `EnvelopeError` with the reason if it is not."""
        try:
            found = read_certificate(der, self.credentials.ca_der, now=self.now())
        except ProtocolError as exc:
            if exc.reason not in ("expired", "not_yet"):
                raise EnvelopeError(Refusal.NO_CERTIFICATE) from exc
            self.doubt()
            raise EnvelopeError(Refusal.EXPIRED) from exc
        if self.list.has(found):
            raise EnvelopeError(Refusal.REVOKED)
        return found

    # -------------------------------------------------------------- revocations

    async def take(self, pem: bytes) -> bool:
        """Take a list of the revoked if it is the authority's and newer; False if it is not.

        Sessions of all on it are ended.
        """
        try:
            found = read_crl(pem, self.credentials.ca_der)
            if found.number <= self.list.number:
                return False
            store_crl(self._data_dir, pem)
        except (ProtocolError, OSError) as exc:
            _log.warning("a revocation list is not used yet: %s", exc)
            return False
        self._reload()
        names = ", ".join(sorted(found.ids))
        _log.warning("revocation list %d is in use%s", found.number, f": {names}" if names else "")
        await self.on_change(found.ids)
        return True

    # ------------------------------------------------------------------ renewal

    async def keep(self, renew: Renew) -> None:
        """Renew the certificate at two thirds of its life, for ever, and learn the site's time."""
        pauses, answers, told = Backoff(), deque[float](maxlen=MOST_ANSWERS), False
        await asyncio.sleep(Backoff(START_S).next())
        while True:
            own = self.credentials.certificate
            share_s = (own.not_after - own.not_before) / 20
            pauses.first_s, pauses.cap_s = min(LOOK_S, share_s), min(SELDOM_S, share_s)
            within_s, pause_s, now = min(WITHIN_S, share_s), 0.0, time.monotonic()
            if self._wanted and (len(answers) < MOST_ANSWERS or now - answers[0] >= within_s):
                pause_s = pauses.next()
                try:
                    await renew()
                except FedagentError as exc:
                    if pauses.attempt == 1 and not own.serves(self.now() or 0.0):
                        left = max(0.0, own.not_after - time.time()) / 86_400
                        _log.warning(
                            "the certificate is not renewed yet: %s; it is valid for %.1f more "
                            "days; trying again",
                            *(exc, left),
                        )
                else:
                    pauses.reset()
                    pause_s = 0.0
                    answers.append(now)
                    told = await self._renewed(own, told=told)
            await asyncio.sleep(pause_s)
            await in_step(pauses.first_s)

    async def _renewed(self, before: Certificate, *, told: bool) -> bool:
        """Take what was answered; return whether it is said that our clock is wrong."""
        self._reload()
        self._doubted, held = False, self.credentials
        ahead_s, now = held.ahead_s, held.certificate
        if now.role != "coordinator":
            self._answered = time.time() - ahead_s, time.monotonic()
        wrong = abs(ahead_s) > CLOCK_S
        if wrong and not told:
            _log.warning(
                "this machine's clock is %.1f days %s the coordinator's: set it (timedatectl "
                "set-ntp true)%s",
                *(abs(ahead_s) / 86_400, "ahead of" if ahead_s > 0 else "behind"),
                "; until then its broker takes nobody in" if now.role == "edge" else "",
            )
        if now != before:
            until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now.not_after))
            _log.info("the certificate was renewed and is valid until %s", until)
            await self.on_change(frozenset())
        return wrong


@dataclass(frozen=True, slots=True)
class Towards:
    """The cover of a link to somebody of the site."""

    site: Membership
    roles: tuple[Role, ...]
    ids: Callable[[], Collection[str]]
    elsewhere: Callable[[str], str]

    def client_context(self) -> ssl.SSLContext:
        """Return a context that shows our certificate and checks the broker's."""
        return self.site.client_context()

    def check_peer(self, peer: socket.socket) -> None:
        """Raise `PeerRefusedError` if who answered is another than expected."""
        role, ident, site = named(peer)
        if role is None:
            raise PeerRefusedError("no_certificate", "shows no certificate of a site")
        own = self.site.credentials.certificate.site
        if site != own:
            raise PeerRefusedError("wrong_site", f"belongs to site {safe_text(site)}, not to {own}")
        if role not in self.roles:
            wanted = " or ".join(self.roles)
            raise PeerRefusedError("wrong_role", f"is {role} {safe_text(ident)}, not {wanted}")
        if ident in self.site.list.ids:
            raise PeerRefusedError("revoked", f"is {role} {ident}, which was revoked")
        ids = self.ids()
        if role != "broker" and ids and ident not in ids:
            announced = ", ".join(sorted(ids))
            problem = f"is {role} {safe_text(ident)}, but the advert names {announced}"
            raise PeerRefusedError("other_id", problem)
        if role != "broker" and (address := self.elsewhere(ident)):
            raise LinkError(f"{safe_text(ident)} is already connected at {address}")


def named(peer: socket.socket) -> tuple[Role | None, str, str]:
    """Return role, id and site of a checked certificate; no role if it names none."""
    shown = peer.getpeercert() if isinstance(peer, ssl.SSLSocket) else None
    subject = (shown or {}).get("subject", ())
    names = {str(pair[0]): str(pair[1]) for part in subject for pair in part}
    letter, _, ident = names.get("commonName", "").partition("/")
    return LETTERS.get(letter), ident, names.get("organizationName", "")
