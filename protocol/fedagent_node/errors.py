"""Errors of the transport.

::

    LinkError
    ├── AddressError          a broker address cannot be read
    ├── TlsFilesError         a certificate file is missing or not usable
    ├── SubscribeRefusedError the broker refused a subscription
    ├── InsecureListenError   listening beyond loopback without certificates
    ├── PlainTextError        speaking beyond loopback without certificates
    ├── BrokerMissingError    the chosen kind of broker is not installed
    ├── ListenAddressError    the address to listen on is not this machine's
    ├── BrokerStartError      the private broker did not come up
    ├── IdentityError         the identity file cannot be read
    ├── DataDirError          the data directory cannot be used
    └── DataDirBusyError      another process uses the data directory
"""

import ssl
from pathlib import Path

from fedagent_protocol.errors import safe_text


class LinkError(Exception):
    """Base of every error of connections, brokers and what they keep on disk."""


class AddressError(LinkError):
    """Raised when text is not a broker address."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        # What stands before the last @ may be a password.
        _, at, where = self.text.rpartition("@")
        shown = f"…@{where}" if at else where
        hint = "use host:port, mqtt://host:port or mqtts://host:port"
        if at:
            hint += ", or mqtt://USER:PASSWORD@host:port with %40 for @, %3A for : and %2F for /"
        return f"not a broker address: {safe_text(shown, limit=80)!r}; {hint}"


class TlsFilesError(LinkError):
    """Raised when certificate files cannot be loaded."""

    def __init__(self, path: Path | None, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        where = f" {self.path}" if self.path else ""
        return f"cannot use the certificate files{where}: {self.reason}; name readable PEM files"


class SubscribeRefusedError(LinkError):
    """Raised when the broker refuses topic filters."""

    def __init__(self, filters: tuple[str, ...]) -> None:
        super().__init__(filters)
        self.filters = filters

    def __str__(self) -> str:
        return f"the broker refused the subscription to {', '.join(self.filters)}"


class InsecureListenError(LinkError):
    """Raised before a broker would listen beyond loopback in the clear."""

    def __init__(self, listen: str) -> None:
        super().__init__(listen)
        self.listen = listen

    def __str__(self) -> str:
        return (
            f"listening on {self.listen} without certificates would let anyone on the network in; "
            "give certificate files (ca, cert, key), or pass --insecure on a network you trust"
        )


class PlainTextError(LinkError):
    """Raised before a role would speak beyond this machine in the clear."""

    hint = "give certificate files (ca, cert, key), or pass --insecure on a network you trust"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address

    @property
    def problem(self) -> str:
        """What is wrong, without the hint."""
        return f"{self.address} is beyond this machine and has no certificates"

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}"


class BrokerMissingError(LinkError):
    """Raised when the chosen kind of broker is not installed."""

    def __init__(self, kind: str, hint: str) -> None:
        super().__init__(kind, hint)
        self.kind = kind
        self.hint = hint

    def __str__(self) -> str:
        return f"no {self.kind} broker here; {self.hint}"


class ListenAddressError(LinkError):
    """Raised when no broker can listen on an address: no card of this machine has it."""

    def __init__(self, listen: str, own: tuple[str, ...]) -> None:
        super().__init__(listen, own)
        self.listen = listen
        self.own = own

    def __str__(self) -> str:
        return (
            f"{self.listen} is not an address of this machine; "
            f"listen on {', '.join(self.own)}, or on 0.0.0.0 for all of them"
        )


class BrokerStartError(LinkError):
    """Raised when a private broker does not come up."""

    def __init__(self, kind: str, port: int, reason: str) -> None:
        super().__init__(kind, port, reason)
        self.kind = kind
        self.port = port
        self.reason = reason

    def __str__(self) -> str:
        return f"the {self.kind} broker did not come up on port {self.port}: {self.reason}"


class IdentityError(LinkError):
    """Raised when the identity file is damaged."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.path} cannot be used ({self.reason}); restore it from a copy, "
            "or delete it to join as a new device"
        )


class DataDirError(LinkError):
    """Raised when a data directory cannot be made or written; no restart fixes that."""

    hint = "choose another --data-dir, or fix its owner and rights"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} cannot be a data directory ({self.reason}); {self.hint}"


class DataDirBusyError(LinkError):
    """Raised when another process holds the data directory."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(path, pid)
        self.path = path
        self.pid = pid

    def __str__(self) -> str:
        who = f"process {self.pid}" if self.pid else "another process"
        return f"{self.path} is in use by {who}; stop it, or choose another --data-dir"


REFUSED_SETTINGS = (PlainTextError, InsecureListenError, BrokerMissingError, TlsFilesError)
"""Errors of what somebody wrote or left out: no restart fixes them, exit code 2 says so."""


def connect_reason(exc: Exception) -> str:
    """Return why a connection failed, on one line and the same for the same cause."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"the broker's certificate was refused: {safe_text(exc.verify_message)}"
    if isinstance(exc, ssl.SSLError):
        return f"TLS: {safe_text(exc.reason or exc)}"
    if isinstance(exc, TimeoutError):
        return "no answer (timed out)"
    if isinstance(exc, OSError) and exc.strerror:
        return safe_text(exc.strerror)
    return safe_text(exc) or type(exc).__name__
