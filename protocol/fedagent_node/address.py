"""Where a broker is, and the password or the certificate files that open it."""

import errno
import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from .errors import COVER, SettingError
from .network import ip_of, is_own

DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}

_URL = re.compile(
    r"(?:(?P<scheme>mqtts?)://(?:(?P<user>[^\s:/@]+)(?::(?P<password>[^\s/@]*))?@)?)?"
    r"(?P<host>\[[^\[\]\s]+\]|[^\s:/\[\]]+)(?::(?P<port>\d{1,5}))?/?"
)
_MAX_CHARS = 4096
_NOT_ONE = "not a broker's address"  # which is not repeated: it may be a password
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address of an MQTT broker, with the user's name and password there.

    Equal where they lead to the same broker. No text of ours shows user or password, which
    is None where it is kept elsewhere: see `settings.with_password`.
    """

    host: str
    port: int
    scheme: Literal["mqtt", "mqtts"] = "mqtt"
    user: str = field(default="", compare=False, repr=False)
    password: str | None = field(default=None, compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> "BrokerAddress":
        """Return the address that a person or an advert wrote, or raise `ValueError`.

        ``host:port``, ``mqtt://host[:port]`` or ``mqtts://host[:port]``, with ``user@`` or
        ``user:password@`` before the host, percent-encoded; IPv6 hosts in brackets.
        """
        match = _URL.fullmatch(text.strip()) if len(text) <= _MAX_CHARS else None
        if match is None or (match["scheme"] is None and match["port"] is None):
            raise ValueError(_NOT_ONE)
        host = match["host"].strip("[]")
        scheme = match["scheme"] or "mqtt"
        port = int(match["port"] or DEFAULT_PORTS[scheme])
        if not 0 < port < 65536 or not _is_host(host, bracketed=match["host"] != host):
            raise ValueError(_NOT_ONE)
        user, password = match["user"] or "", match["password"]
        return cls(
            host,
            port,
            "mqtts" if scheme == "mqtts" else "mqtt",
            unquote(user),
            None if password is None else unquote(password),
        )

    @property
    def exposed(self) -> bool:
        """Whether what is sent there crosses a network unencrypted.

        What goes to an address of this machine never leaves it, whichever card has it.
        """
        return self.scheme == "mqtt" and not (is_loopback(self.host) or is_own(self.host))

    def check_cover(self, *, insecure: bool, key: str = "address") -> None:
        """Raise `SettingError` if it is exposed and that was not allowed."""
        if self.exposed and not insecure:
            problem = f"{self} is on another machine, and no certificates are configured"
            raise SettingError(key, problem, COVER)

    def __str__(self) -> str:
        """Return the form that `parse` reads, without the user; without TLS ``host:port``."""
        place = at_port(self.host, self.port)
        return place if self.scheme == "mqtt" else f"mqtts://{place}"


class TellingObject(ssl.SSLObject):
    """The server's end of asyncio's TLS that tells a client why it is refused.

    asyncio ends a connection whose handshake failed before the alert is sent: here it learns of
    the failure one step later.
    """

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Go on with the handshake."""
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as exc:
            self._failure = exc
            raise ssl.SSLWantReadError from exc


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the authority both ends trust, the own certificate and key, who was revoked.

    A context raises `SettingError` where one is missing or not PEM; a list of the revoked is
    not asked for where there is none.
    """

    ca: Path
    cert: Path
    key: Path
    crl: Path | None = None
    least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2

    def client_context(self) -> ssl.SSLContext:
        """Return a context that shows our certificate and checks the broker's."""
        return self.loaded(ssl.PROTOCOL_TLS_CLIENT)

    def check_peer(self, peer: socket.socket) -> None:
        """Take who answered: the handshake compared the names of hosts."""

    def server_context(self) -> ssl.SSLContext:
        """Return a context that refuses clients without a certificate of our authority."""
        context = self.loaded(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.sslobject_class = TellingObject
        return context

    def loaded(self, side: int) -> ssl.SSLContext:
        """Return a context with the files as they are now."""
        context = ssl.SSLContext(side)
        context.minimum_version = self.least
        path = self.ca
        try:
            context.load_verify_locations(self.ca)
            if self.crl is not None and self.crl.exists():
                path = self.crl
                context.load_verify_locations(self.crl)
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
            path = self.cert
            context.load_cert_chain(self.cert, self.key)
        except OSError as exc:
            problem = f"cannot use the certificate files {path}: {exc.strerror or exc}"
            raise SettingError("tls", problem, "name readable PEM files") from exc
        return context


def with_hint(reason: str, address: BrokerAddress, *, before: bool = False) -> str:
    """Return why a broker did not take us, and what to do where that is known.

    `before` says that it did in this process's life.
    """
    silent = reason == os.strerror(errno.ECONNREFUSED)
    if silent and before:
        return f"{reason}; it answered before: it has stopped or is restarting; still trying"
    if silent and not is_loopback(address.host):
        return (
            f"{reason}; start who is to answer there, with --listen 0.0.0.0 (a broker that is not "
            "ours: docs/quickstart.md, 4)"
        )
    if "ot authori" in reason or "user name or password" in reason:
        if address.user:
            return f"{reason}; check the user and the password in the address"
        return f"{reason}; write the address as mqtt://USER:PASSWORD@HOST:PORT"
    return reason


def bracketed(host: str) -> str:
    """Return a host as it is before a colon: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def at_port(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 address in brackets."""
    return f"{bracketed(host)}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    found = ip_of(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def is_wildcard(host: str) -> bool:
    """Return whether `host` stands for all interfaces."""
    return host in {"0.0.0.0", "::", ""}  # noqa: S104 - compared, not bound


def _is_host(host: str, *, bracketed: bool) -> bool:
    if (found := ip_of(host)) is not None:
        return (found.version == 6) == bracketed
    return not bracketed and len(host) <= 253 and _NAME.fullmatch(host) is not None
