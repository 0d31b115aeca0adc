"""Who comes without a word, or reads nothing, keeps nobody else out and holds no descriptor."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from fedagent_coordinator.config import PageAddress
from fedagent_coordinator.web import api, door
from fedagent_coordinator.web.door import MAX_CONNECTIONS
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
    monkeypatch.setattr(api, "SENDING_S", PATIENCE_S)
    with served(tmp_path, EVERYWHERE, insecure=insecure) as found:
        found.url = f"{urlsplit(found.url).scheme}://127.0.0.1:{urlsplit(found.url).port}/"
        yield found


@contextmanager
def linked(page: Served, count: int, said: bytes) -> Iterator[list[socket.socket]]:
    """Connections that say something, and no more."""
    port = urlsplit(page.url).port or 0
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", port))
            one.sendall(said)
            made.append(one)
        yield made


def left(links: list[socket.socket]) -> int:
    """How many of these are still connected, by the kernel's word: nothing is read."""
    closed = {"\x07", "\x08"}  # CLOSE, CLOSE_WAIT
    states = (one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1).decode() for one in links)
    return sum(state not in closed for state in states)


def await_end(links: list[socket.socket]) -> None:
    while left(links):
        time.sleep(0.05)


def test_a_connection_without_a_whole_request_is_hung_up(page: Served) -> None:
    with linked(page, 4, b"") as silent, linked(page, 4, b"GET / HT") as begun:
        await_end(silent + begun)


@pytest.mark.parametrize("insecure", [False])
def test_a_handshake_that_stops_is_hung_up(page: Served) -> None:
    assert page.url.startswith("https")
    with linked(page, 4, b"\x16\x03\x01") as links:
        await_end(links)


def test_the_end_of_a_request_has_to_come(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PATIENCE_S", 0.3)
    said = b"POST /api/session HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
    with linked(page, 1, said) as links:
        assert links[0].recv(100).startswith(b"HTTP/1.1 408 ")


def test_where_all_is_full_the_longest_idle_makes_room(page: Served) -> None:
    with linked(page, 2 * MAX_CONNECTIONS, b"") as links:
        assert page.ask("")[0] == 200
        assert left(links) <= MAX_CONNECTIONS


def test_a_viewer_that_is_answered_is_not_idle(page: Served) -> None:
    said = f"GET /api/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {page.token}\r\n\r\n"
    with linked(page, 1, said.encode()) as links:
        time.sleep(2 * PATIENCE_S)
        assert left(links) == 1


def test_a_viewer_that_asks_and_reads_nothing_holds_no_descriptor(page: Served) -> None:
    """Its answers fill the buffers on both ends; then its time runs."""
    port = urlsplit(page.url).port

    def held() -> int:
        """Return how many connections the page has."""
        ours = psutil.Process().net_connections("tcp")
        return sum(one.laddr.port == port and one.status != psutil.CONN_LISTEN for one in ours)

    with linked(page, 3, 400 * b"GET /page.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        while held() < 3:
            time.sleep(0.05)
        while held():
            time.sleep(0.05)
