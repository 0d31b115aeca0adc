"""`fedagent status --page`: the link to the live page of a coordinator."""

import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from fedagent_cli import places
from fedagent_cli.errors import NoRunError
from fedagent_cli.extras import draw_qr
from fedagent_cli.output import echo, emit
from fedagent_coordinator.picture.status_files import read_page
from fedagent_node.data_dir import holder_of

_CONNECT_S = 2.0


def show_page(data_dir: Path | None, *, as_json: bool) -> None:
    """Print the link to the live page, with the token that opens it, and draw its QR code."""
    folder = (data_dir if data_dir is not None else places.data_dir("coordinator")).expanduser()
    found = read_page(folder)
    if found is None or not found.url or not _serves(folder, found.url):
        raise NoRunError(
            f"no running coordinator of {folder} serves a live page",
            "start it (`fedagent coordinator start`, without --no-web), or give --data-dir",
        )
    if as_json:
        emit({"url": found.url, "link": found.link, "fingerprint": found.fingerprint})
        return
    if sys.stdout.isatty():
        draw_qr(found.link)
    echo(found.link)
    if found.fingerprint:
        echo(
            "its certificate is self-signed; compare it in the browser: SHA-256 "
            f"{found.fingerprint}"
        )


def _serves(folder: Path, url: str) -> bool:
    """Return whether a coordinator holds the folder, and its page's address answers."""
    place = urlsplit(url)
    try:
        socket.create_connection((str(place.hostname), place.port or 0), _CONNECT_S).close()
    except OSError:
        return False
    # Another program may have the port by now: it gets no token.
    return holder_of(folder) is not None
