"""Who may look and who may change something: a token, a cookie after its first use, same origin.

On loopback everybody on this machine may look; beyond it nobody without the token. To change
something always takes the token, by cookie from the page's own origin or as a bearer.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from fedagent_node.address import is_loopback

COOKIE = "fedagent_page"
WRONG = 10
"""Wrong tokens of one address within `WINDOW_S`; more are not looked at."""
WINDOW_S = 60.0
MAX_PEERS = 1024


class Tries:
    """Wrong tokens of late, by the address they came from."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._wrong: dict[str, list[float]] = {}

    def spent(self, peer: str) -> bool:
        """Return whether an address has been wrong too often to be heard."""
        since = self._now() - WINDOW_S
        return sum(at > since for at in self._wrong.get(peer, ())) >= WRONG

    def note(self, peer: str) -> None:
        """Count a wrong one; of too many addresses that of longest ago is forgotten."""
        times = self._wrong.pop(peer, [])
        self._wrong[peer] = [*times, self._now()][-WRONG:]
        if len(self._wrong) > MAX_PEERS:
            del self._wrong[next(iter(self._wrong))]


class Access:
    """What a request may do, by its headers."""

    def __init__(self, token: str, *, host: str, secure: bool) -> None:
        self._token = token
        self._host = host
        self.open = is_loopback(host)
        """Whether one may look without the token."""
        self.secure = secure
        self.tries = Tries()

    @property
    def cookie(self) -> str:
        """What a session's cookie holds: it does not tell the token."""
        return hmac.digest(self._token.encode(), b"fedagent page", hashlib.sha256).hex()

    def takes(self, token: str) -> bool:
        """Return whether it is the token."""
        return hmac.compare_digest(token.encode(), self._token.encode())

    def knows(self, headers: Headers, cookies: dict[str, str]) -> bool:
        """Return whether a request has the token, or a session of it."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.takes(bearer.strip()):
            return True
        return hmac.compare_digest(cookies.get(COOKIE, "").encode(), self.cookie.encode())

    def is_here(self, headers: Headers) -> bool:
        """Return whether it names this machine: another name may be a stranger's, led here."""
        if not self.open:
            return True
        try:
            name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name == self._host

    def same_origin(self, headers: Headers) -> bool:
        """Return whether a change was asked for by our own page, or by no page at all."""
        origin = headers.get("origin")
        if origin is None:
            return headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}
        scheme = "https" if self.secure else "http"
        return origin == f"{scheme}://{headers.get('host', '')}"
