"""Errors of connections, brokers and the data directory."""

import ssl
from pathlib import Path

from fedagent_protocol.errors import FedagentError, safe_text

COVER = (
    "join the site (`fedagent devices invite NAME` at the coordinator, then --join STRING here), "
    "give certificate files (ca, cert, key), or pass --insecure on a network you trust"
)


class LinkError(FedagentError):
    """Base of every error of connections, brokers and what they keep on disk."""


class DiskError(FedagentError):
    """Raised when a file in the data directory cannot be read or written."""

    template = "{path}: {reason}"

    path: Path
    reason: str
    hint: str = "make room or fix the disk, then start it again"


def disk_refused(path: Path, error: OSError) -> DiskError:
    """Return the error for a disk that does not take what must not be lost."""
    return DiskError(path, error.strerror or str(error))


class SettingError(LinkError):
    """Raised for what somebody wrote or left out: no restart fixes it, exit code 2 says so."""

    template = "{key}: {problem}"

    key: str
    problem: str
    hint: str


class PeerRefusedError(LinkError):
    """Raised before a byte is sent to who showed the certificate of another than expected."""

    template = "the peer that answered {problem}"
    hint = "nothing was sent; the zeroconf advert of that name may be forged"

    reason: str
    problem: str


class CredentialsError(LinkError):
    """Raised when a role's identity or certificates, or an authority's, are damaged."""

    template = "{path} cannot be used ({reason})"

    path: Path
    reason: str
    hint: str = "delete the folder it is in, and join again with `--join`"


_NEW_INVITATION = "ask for a new one: `fedagent devices invite NAME` at the coordinator"
_NEW_DEVICE = "to join as a new device, choose another --data-dir and ask for an invitation"
"""The hint for who was revoked, which is so for good."""
_JOIN_HINTS: dict[str, tuple[str, str]] = {
    "not_an_invitation": (
        "this is not an invitation",
        "give the whole string that begins with `fedagent:`, or HOST:PORT of a join service",
    ),
    "malformed": (
        "the answer is not in fedagent's format",
        "check that a fedagent join service listens at that address",
    ),
    "version": (
        "the other side runs another version of fedagent",
        "install the same release on both machines",
    ),
    "bad_signature": ("the key belongs to another device", "restore identity.json, or delete it"),
    "wrong_site": ("the site has another name", "give its name with --site"),
    "wrong_role": (
        "the invitation, or the key, is for another role",
        "an edge needs `fedagent devices invite NAME --role edge`, and a data directory of its own",
    ),
    "unknown_invitation": ("the site does not know this invitation", _NEW_INVITATION),
    "used_invitation": ("this invitation was used by another device", _NEW_INVITATION),
    "expired_invitation": ("this invitation has expired", _NEW_INVITATION),
    "revoked": ("this key was revoked", _NEW_DEVICE),
    "too_many_pending": (
        "too many devices are waiting to be accepted",
        "accept or refuse some: `fedagent devices` at the coordinator",
    ),
    "elsewhere": (
        "this role belongs to another site already, and the invitation is not from its authority",
        "choose another --data-dir, or delete its folder `site` to leave the old site",
    ),
    "unreachable": (
        "the join service does not answer",
        "check that the coordinator runs with --listen 0.0.0.0 and that its --join-port is open",
    ),
    "closed": ("the coordinator accepts no devices at the moment", "try again later"),
    "forgotten": (
        "the site no longer knows this key",
        "after a restore of the coordinator, delete the folder `site` here and join again",
    ),
    "other_authority": (
        "the join service is not that of the invitation's site",
        "another machine may be in between, or the site was founded again: ask for an invitation",
    ),
}


class JoinError(LinkError):
    """Raised when a site does not let a role in, is not the one it should be, or is silent."""

    template = "not joined: {words}"

    reason: str
    why: str = ""

    @property
    def words(self) -> str:
        """Why not, in short."""
        shown = f"refused ({safe_text(self.reason, limit=64)})"
        return _JOIN_HINTS.get(self.reason, (shown, ""))[0] + self.why

    @property
    def hint(self) -> str:  # type: ignore[override]  # it depends on the reason
        """What to do about it."""
        return _JOIN_HINTS.get(self.reason, ("", "see the coordinator's log"))[1]


class DataDirBusyError(LinkError):
    """Raised when another process holds the data directory."""

    template = "{path} is in use by {holder}"
    hint = "stop it, or choose another --data-dir"

    path: Path
    pid: int | None

    @property
    def holder(self) -> str:
        """Who holds it."""
        return f"process {self.pid}" if self.pid else "another process"


_MINE = "the broker's certificate was refused"
_YOURS = "the broker refused our certificate"
_INVITE = "join again with a new invitation (`fedagent devices invite`)"
_ASK = "ask the coordinator's operator: `fedagent devices` there shows it"
_RENEWS = "it is renewed once the coordinator can be reached; check this machine's clock as well"
_OTHER_SITE = "it belongs to another site; check --site, or join this site"
_CLOCKS = "set the clocks of both machines (timedatectl set-ntp true)"

_VERIFY = {
    9: ("not_yet_valid", "it is not valid yet", _CLOCKS),
    10: ("expired", "it has expired", f"on that machine {_RENEWS}"),
    **dict.fromkeys(
        (18, 19, 20), ("wrong_ca", "this site's authority did not issue it", _OTHER_SITE)
    ),
    23: ("revoked", "it was revoked", _ASK),
    26: (
        "wrong_role",
        "its role may not run a broker",
        "the zeroconf advert of that name may be forged",
    ),
}
"""Codes of OpenSSL's verification to reason, words and hint."""
_ALERTS = {
    "CERTIFICATE_REQUIRED": ("no_certificate", "it requires one, and none was presented", _INVITE),
    "CERTIFICATE_EXPIRED": ("expired", "it has expired", _RENEWS),
    "CERTIFICATE_REVOKED": ("revoked", "it was revoked", _NEW_DEVICE),
    "UNKNOWN_CA": ("wrong_ca", "the authority of the broker's site did not issue it", _OTHER_SITE),
    "UNSUPPORTED_CERTIFICATE": ("wrong_role", "it is for another role", _INVITE),
    "BAD_CERTIFICATE": ("not_yet_valid", "it is not valid yet, or is damaged", _CLOCKS),
    "DECRYPT_ERROR": ("bad_certificate", "it does not match our key", _INVITE),
}
"""TLS alerts to reason, words and hint: what the other end found of our certificate."""


def tls_refusal(exc: Exception) -> tuple[str, str] | None:
    """Return the reason for which certificates did not open a connection, and a line with the hint.

    None where it failed for another reason.
    """
    if isinstance(exc, PeerRefusedError):
        return exc.reason, f"{exc.sentence}; {exc.hint}"
    if isinstance(exc, ssl.SSLCertVerificationError):
        told = safe_text(exc.verify_message)
        reason, words, hint = _VERIFY.get(exc.verify_code, ("bad_certificate", told, ""))
        return reason, f"{_MINE}: {words}{'; ' if hint else ''}{hint}"
    if isinstance(exc, ssl.SSLError):
        _, _, alert = (exc.reason or "").partition("ALERT_")
        if alert in _ALERTS:
            reason, words, hint = _ALERTS[alert]
            return reason, f"{_YOURS}: {words}; {hint}"
    return None


def is_strangers(reason: str) -> bool:
    """Whether a `connect_reason` is of somebody who answered, and is not who was meant."""
    return reason.startswith((_MINE, _YOURS, PeerRefusedError.template.partition(" {")[0]))


def connect_reason(exc: Exception) -> str:
    """Return why a connection failed, on one line and the same for the same cause."""
    if (refused := tls_refusal(exc)) is not None:
        return refused[1]
    if isinstance(exc, ssl.SSLError):
        return f"TLS: {safe_text(exc.reason or exc)}"
    if isinstance(exc, TimeoutError):
        return "no answer (timed out)"
    if isinstance(exc, OSError) and exc.strerror:
        return safe_text(exc.strerror)
    return safe_text(exc) or type(exc).__name__
