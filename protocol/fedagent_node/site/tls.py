"""TLS between the members of a site: contexts from credentials, and who the other end must be.

There are no host names: a certificate names an identity, and what an address leads to is
judged by the role, the site and the id in the certificate, before a byte of MQTT is sent.
"""

import socket
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from fedagent_node.address import TlsFiles
from fedagent_node.errors import LinkError, PeerRefusedError
from fedagent_node.site.certificates import LETTERS, Role
from fedagent_node.site.credentials import Credentials, load_credentials
from fedagent_protocol.errors import safe_text

NO_CHECK_TIME = 0x200000
"""``X509_V_FLAG_NO_CHECK_TIME`` of OpenSSL, which the module `ssl` does not name."""


class SiteTls:
    """What a member of a site shows and asks for on its connections.

    Contexts are made of the files as they are at each call: a renewed certificate, or a newer
    list of revocations, holds from the next connection on.
    """

    def __init__(self, data_dir: Path, credentials: Credentials) -> None:
        self._data_dir = data_dir
        self.credentials = credentials
        self.revoked = credentials.revocations()

    @classmethod
    def of(cls, data_dir: Path) -> "SiteTls | None":
        """Return the TLS of who keeps `data_dir`; None before it joined a site."""
        credentials = load_credentials(data_dir)
        return None if credentials is None else cls(data_dir, credentials)

    @property
    def files(self) -> TlsFiles:
        """The files of a broker of our own."""
        own = self.credentials
        return TlsFiles(own.ca, own.cert, own.key, own.crl, ssl.TLSVersion.TLSv1_3)

    def reload(self) -> None:
        """Take the files that are there now."""
        self.credentials = load_credentials(self._data_dir) or self.credentials
        self.revoked = self.credentials.revocations()

    def client_context(self) -> ssl.SSLContext:
        """Return a context that shows our certificate and checks the other's, but for its id."""
        context = self.files.loaded(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        if self.credentials.judged_time() is None:
            # A board without a battery begins in 1970: validity times are not judged then, the
            # rest is (C1).
            context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
        return context

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


@dataclass(frozen=True, slots=True)
class Towards:
    """The cover of a link to somebody of the site."""

    site: SiteTls
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
        if ident in self.site.revoked.ids:
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
