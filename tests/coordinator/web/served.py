"""A page over a real data directory, and a browser of one function."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagent_coordinator.config import PageAddress
from fedagent_coordinator.picture.status_files import Page
from fedagent_coordinator.web.server import PageServer

LOOPBACK = PageAddress("127.0.0.1", 0)


@dataclass
class Served:
    url: str
    token: str

    def ask(
        self, path: str, body: object = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=600) as found:
                text, status, head = found.read(), found.status, dict(found.headers)
        except urllib.error.HTTPError as error:
            text, status, head = error.read(), error.code, dict(error.headers)
        kind = head.get("content-type", "")
        return status, json.loads(text) if "json" in kind else text.decode(), head

    def get(self, path: str) -> Any:
        status, found, _ = self.ask(path)
        assert status == 200, found
        return found


@contextmanager
def served(folder: Path, place: PageAddress = LOOPBACK, **more: Any) -> Iterator[Served]:
    server = PageServer(folder, place, **more)
    url = server.start()
    page = Page.read(folder)
    assert page is not None
    try:
        yield Served(url, page.token)
    finally:
        server.stop()
