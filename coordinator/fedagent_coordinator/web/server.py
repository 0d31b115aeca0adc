"""The page's server: a thread with a loop of its own, so that the rounds wait for no viewer."""

import errno
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from fedagent_coordinator.config import DEFAULT_PAGE_PORT, PageAddress
from fedagent_coordinator.picture.status_files import Page
from fedagent_node.address import TlsFiles, at_port, bracketed
from fedagent_node.errors import LinkError
from fedagent_node.network import lan_addresses, listen_hint
from fedagent_protocol.extras import how_to_add

from .certificate import own_certificate
from .door import Door

if TYPE_CHECKING:
    from .api import Serving

_log = logging.getLogger(__name__)
_STOP_S = 2.0
_BACKLOG = 64
PACKAGES = ("starlette", "uvicorn")


class PageServer:
    """Serves the page of one data directory.

    Args:
        folder: The coordinator's data directory.
        place: Where it listens; port 0 takes the last one, else the usual one, else a free one.
        tls: Certificate files to serve it with; beyond loopback it makes its own without.
        insecure: Serve it beyond loopback in the clear.
    """

    def __init__(
        self,
        folder: Path,
        place: PageAddress,
        *,
        tls: TlsFiles | None = None,
        insecure: bool = False,
    ) -> None:
        self._folder = folder
        self._place = place
        self._tls = tls
        self._insecure = insecure
        self._thread: threading.Thread | None = None
        self._door: Door | None = None
        self._serving: Serving | None = None

    def start(self) -> str:
        """Listen, and begin to serve in a thread; return the page's address.

        Raises:
            LinkError: Nobody can listen there.
        """
        # The token stays the same over restarts.
        page = Page.read(self._folder) or Page(token=secrets.token_urlsafe(24))
        self._door = _listen(self._place, page.port)
        port = self._door.getsockname()[1]
        files, print_ = self._cover()
        scheme = "https" if files is not None else "http"
        page = structs.replace(
            page,
            url=f"{scheme}://{_shown(self._place.host)}:{port}/",
            port=port,
            fingerprint=print_,
        )
        page.write(self._folder)
        self._thread = threading.Thread(
            target=self._serve, args=(page, files), name="page", daemon=True
        )
        self._thread.start()
        return page.url

    def _cover(self) -> tuple[tuple[Path, Path] | None, str]:
        """Return certificate and key, and a fingerprint where nobody vouches for them."""
        if self._tls is not None:
            return (self._tls.cert, self._tls.key), ""
        if self._place.is_loopback or self._insecure:
            return None, ""
        return own_certificate(self._folder, [self._place.host, *lan_addresses()])

    def _serve(self, page: Page, files: tuple[Path, Path] | None) -> None:
        from .api import Serving  # noqa: PLC0415 - megabytes, where nobody looks

        assert self._door is not None
        try:
            host = self._place.host
            self._serving = Serving(self._folder, self._door, page.token, host=host, files=files)
            self._serving.run()
        except Exception:  # noqa: BLE001 - a page that fails costs no round
            _log.exception("the live page has ended")

    def stop(self) -> None:
        """End it; viewers are cut off."""
        deadline = time.monotonic() + _STOP_S
        if self._serving is not None:
            self._serving.end()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._door is not None:
            self._door.close()
            forget_place(self._folder)


def forget_place(folder: Path) -> None:
    """Forget where the page of a folder was, not its token: who listens there now is another."""
    found = Page.read(folder)
    if found is not None and found.url:
        structs.replace(found, url="").write(folder)


def start_page(server: PageServer, *, asked: bool) -> str:
    """Start it and say where it is; empty where there is none, and the run goes on without.

    Raises:
        LinkError: Nobody can listen where it was `asked` to.
    """
    if any(find_spec(package) is None for package in PACKAGES):
        loud: Callable[..., None] = _log.warning if asked else _log.info
        loud("no live page: it needs the extra `web`: %s", how_to_add("web"))
        return ""
    try:
        url = server.start()
    except LinkError as error:
        if asked:
            raise
        _log.warning("%s", error)
        return ""
    _log.info("live page: %s (its token: `fedagent status --page`)", url)
    return url


def _listen(place: PageAddress, last: int) -> Door:
    wanted = [place.port] if place.port else [*filter(None, (last, DEFAULT_PAGE_PORT)), 0]
    for port in wanted:
        found = Door(socket.AF_INET6 if ":" in place.host else socket.AF_INET)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((place.host, port))
            found.listen(_BACKLOG)
        except OSError as error:
            found.close()
            if port == wanted[-1]:
                why = error.strerror or str(error)
                plain = "choose another port with --web, or stop the program that uses it"
                if error.errno == errno.EACCES:
                    plain = "ports below 1024 need extra privileges; choose a higher one"
                hint = listen_hint(place.host, plain)
                where = at_port(place.host, port)
                raise LinkError(f"no live page at {where}: {why}", hint) from error
        else:
            return found
    raise AssertionError


def _shown(host: str) -> str:
    """Return the host of an address for people; where it is all, one of this machine's."""
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        host = next(iter(lan_addresses()), socket.gethostname())
    return bracketed(host)
