"""A role's standing in its site while it runs: renewal of its certificate, and who was revoked."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from fedagent_node.envelope import EnvelopeError, Refusal
from fedagent_node.link import Link
from fedagent_node.network import in_step
from fedagent_node.site.certificates import Certificate, CertificateError
from fedagent_node.site.credentials import Credentials, store_crl
from fedagent_node.site.reading import read_certificate, read_crl
from fedagent_node.site.tls import SiteTls
from fedagent_protocol.errors import FedagentError

LOOK_S = 60.0
"""How often it is looked whether to renew: clocks are set, and laptops sleep."""
_REFUSALS = {
    "expired": Refusal.EXPIRED,
    "not_yet": Refusal.EXPIRED,
    "wrong_role": Refusal.WRONG_ROLE,
}
_log = logging.getLogger(__name__)

Renew = Callable[[], Awaitable[Credentials]]
"""Asks for the next certificate and keeps it; raises `FedagentError` if there is none now."""


class Membership:
    """What the gate asks of certificates (`envelope.Certifier`), and what becomes of them.

    `on_change` is called after the files of the site changed, with who is revoked now.
    """

    def __init__(
        self,
        data_dir: Path,
        site: SiteTls,
        links: Mapping[str, Link],
        on_change: Callable[[frozenset[str]], Awaitable[None]],
    ) -> None:
        self.site = site
        self._data_dir = data_dir
        self._links = links
        self._on_change = on_change

    # ------------------------------------------------------------- for the gate

    def asked(self, link: str) -> bool:
        """Whether only members can be on a link."""
        found = self._links.get(link)
        return found is not None and found.certified

    def own(self) -> bytes:
        """Return this process's certificate."""
        return self.site.credentials.certificate.der

    def read(self, der: bytes) -> Certificate:
        """Return a certificate that is valid now; `EnvelopeError` with the reason if it is not."""
        own = self.site.credentials
        try:
            found = read_certificate(der, own.ca_der, now=own.judged_time())
        except CertificateError as exc:
            raise EnvelopeError(_REFUSALS.get(exc.reason, Refusal.NO_CERTIFICATE)) from exc
        if self.site.revoked.has(found):
            raise EnvelopeError(Refusal.REVOKED)
        return found

    # -------------------------------------------------------------- revocations

    @property
    def number(self) -> int:
        """The number of the newest list of the revoked."""
        return self.site.revoked.number

    @property
    def revoked(self) -> frozenset[str]:
        """Who is on that list."""
        return self.site.revoked.ids

    async def take(self, pem: bytes) -> bool:
        """Take a list of the revoked if it is the authority's and newer; False if it is not.

        Sessions of all on it are ended.
        """
        try:
            found = read_crl(pem, self.site.credentials.ca_der)
            if found.number <= self.number:
                return False
            store_crl(self._data_dir, pem)
        except (CertificateError, OSError) as exc:
            _log.warning("a revocation list is not used yet: %s", exc)
            return False
        self.site.reload()
        names = ", ".join(sorted(found.ids))
        _log.warning("revocation list %d is in use%s", self.number, f": {names}" if names else "")
        await self._on_change(found.ids)
        return True

    # ------------------------------------------------------------------ renewal

    async def keep(self, renew: Renew) -> None:
        """Renew the certificate at two thirds of its life, for ever."""
        failed = 0
        while True:
            own = self.site.credentials.certificate
            await in_step(min(LOOK_S, (own.not_after - own.not_before) / 20))
            if time.time() < own.renew_at:
                continue
            try:
                await renew()
            except FedagentError as exc:
                failed += 1
                if failed == 1:
                    left = max(0.0, own.not_after - time.time()) / 86_400
                    _log.warning(
                        "the certificate is not renewed yet: %s; it is valid for %.1f more "
                        "days; trying again",
                        *(exc, left),
                    )
                continue
            failed = 0
            self.site.reload()
            now = self.site.credentials.certificate
            until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now.not_after))
            _log.info("the certificate was renewed and is valid until %s", until)
            await self._on_change(frozenset())
