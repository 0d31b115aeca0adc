"""Who comes without a word, or with too many connections, keeps nobody else out."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedagent_coordinator.config import PageAddress
from fedagent_coordinator.web import api, door
from fedagent_coordinator.web.door import MAX_CONNECTIONS, MAX_OF_ADDRESS
from tests.fakes.written_runs import write_run

from .served import Served, served

EVERYWHERE = PageAddress("0.0.0.0", 0)
PATIENCE_S = 2.0


@pytest.fixture
def insecure() -> bool:
    return True


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, insecure: bool) -> Iterator[Served]:
    write_run(tmp_path, rounds=1)
    make = door.Door.__init__
    monkeypatch.setattr(door.Door, "__init__", lambda *args: make(*args, patience_s=PATIENCE_S))
    with served(tmp_path, EVERYWHERE, insecure=insecure) as found:
        found.url = f"{urlsplit(found.url).scheme}://127.0.0.1:{urlsplit(found.url).port}/"
        yield found


@contextmanager
def idle(page: Served, count: int, source: str, said: bytes) -> Iterator[list[socket.socket]]:
    """Connections of one address that say something, and no more."""
    port = urlsplit(page.url).port or 0
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port), 5, source_address=(source, 0))
            made.append(stack.enter_context(one))
            one.sendall(said)
        yield made


def left(links: list[socket.socket]) -> int:
    """How many of these are still connected, a moment later."""
    time.sleep(0.3)
    found = 0
    for one in links:
        one.setblocking(False)
        try:
            while one.recv(65_536):
                pass
        except BlockingIOError:
            found += 1
        except OSError:
            pass
    return found


def await_end(links: list[socket.socket]) -> None:
    until = time.monotonic() + 10
    while left(links):
        assert time.monotonic() < until


def test_one_address_has_so_many_connections_and_others_still_come_in(page: Served) -> None:
    with idle(page, 3 * MAX_OF_ADDRESS, "127.0.0.2", b"") as links:
        assert page.ask("")[0] == 200
        assert left(links) == MAX_OF_ADDRESS


@pytest.mark.parametrize("said", [b"", b"GET / HT"], ids=["nothing", "a part of a request"])
def test_a_connection_without_a_request_is_hung_up(page: Served, said: bytes) -> None:
    with idle(page, 4, "127.0.0.2", said) as links:
        await_end(links)


@pytest.mark.parametrize("insecure", [False])
def test_a_handshake_that_stops_is_hung_up(page: Served) -> None:
    assert page.url.startswith("https")
    with idle(page, 4, "127.0.0.2", b"\x16\x03\x01") as links:
        await_end(links)


def test_the_end_of_a_request_has_to_come(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PATIENCE_S", 0.3)
    said = b"POST /api/session HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
    with idle(page, 1, "127.0.0.2", said) as links:
        assert links[0].recv(100).startswith(b"HTTP/1.1 408 ")


def test_where_all_is_full_the_longest_idle_makes_room(page: Served) -> None:
    with ExitStack() as stack:
        for at in range(MAX_CONNECTIONS // MAX_OF_ADDRESS + 1):
            stack.enter_context(idle(page, MAX_OF_ADDRESS, f"127.0.0.{2 + at}", b""))
        assert page.ask("")[0] == 200


def test_a_viewer_that_is_answered_is_not_idle(page: Served) -> None:
    said = f"GET /api/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {page.token}\r\n\r\n"
    with idle(page, 1, "127.0.0.2", said.encode()) as links:
        time.sleep(2 * PATIENCE_S)
        assert left(links) == 1
