"""Who may look and who may change something: a token, a cookie after its first use, same origin.

On loopback everybody on this machine may look; beyond it nobody without the token. To change
something always takes the token, by cookie from the page's own origin or as a bearer.
"""

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from fedagent_node.address import is_loopback

COOKIE = "fedagent_page"


class Access:
    """What a request may do, by its headers."""

    def __init__(self, token: str, *, host: str, secure: bool) -> None:
        self._token = token
        self._host = host
        self.open = is_loopback(host)
        """Whether one may look without the token."""
        self.secure = secure

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
