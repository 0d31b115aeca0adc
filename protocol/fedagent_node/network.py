"""This machine's addresses and ports, who answers at others, and pauses between attempts."""

import asyncio
import errno
import ipaddress
import os
import random
import re
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import ifaddr
import psutil

from .errors import LinkError, connect_reason

ANSWER_S = 2.0
CONNECT_TIMEOUT_S = 5.0
VERDICT_S = 0.5
"""A broker that sends no tickets says nothing when all is well; more is not waited for that."""
HALF_OPEN = tuple(
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 45), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
)
"""Options by which the kernel ends a connection whose other end has been gone for a minute."""
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
READ_AHEAD_BYTES = 8192
MDNS_GROUP = "224.0.0.251"
_INNER = re.compile(
    # docker's own bridges are br- and a hash: OpenWrt's LAN is br-lan.
    r"docker|veth|br-[0-9a-f]{12}$|virbr|cni|flannel|cali|lxc|lxdbr|podman"
)


def lan_addresses() -> list[str]:
    """Return the IPv4 addresses of real networks: no loopback and no containers.

    Link-local ones count where a card has no other: one cable, and nobody who gives addresses.
    """
    found = []
    for adapter in ifaddr.get_adapters():
        if not _INNER.match(adapter.name):
            all_ = [ipaddress.ip_address(str(one.ip)) for one in adapter.ips if one.is_IPv4]
            usable = [one for one in all_ if not (one.is_loopback or one.is_unspecified)]
            found += [one for one in usable if not one.is_link_local] or usable
    return list(map(str, found))


def is_own(host: str) -> bool:
    """Return whether an IP address is one of this machine's; a name is not looked up."""
    return any(str(network.ip) == host for network in _own_networks())


def shares_network(host: str, own: Collection[str]) -> bool:
    """Return whether an IP address is in a network in which we have one of our own addresses."""
    address = ip_of(host)
    networks = [one.network for one in _own_networks() if str(one.ip) in own]
    return address is not None and any(address in network for network in networks)


def by_nearness(hosts: Sequence[str]) -> list[str]:
    """Return the advertised addresses in the order in which to try them.

    Those on a network of ours come first, then the smaller: records come in any order, and
    who is connected must not change over. IPv6 is left out, but for loopback.
    """
    found = [one for one in map(ip_of, hosts) if one is not None]
    networks = [interface.network for interface in _own_networks()]

    def key(address: IpAddress) -> tuple[bool, bool, int]:
        return not any(address in net for net in networks), address.version == 6, int(address)

    usable = [one for one in found if one.version == 4 or one.is_loopback]
    return [str(address) for address in sorted(usable, key=key)]


def multicast_works(address: str) -> bool:
    """Return whether mDNS can be spoken from an own IPv4 address."""
    try:
        with multicast_socket(address):
            return True
    except OSError:
        return False


@contextmanager
def multicast_socket(address: str) -> Iterator[socket.socket]:
    """Yield a UDP socket of the mDNS group at an own IPv4 address; `OSError` if none can be."""
    own = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
        group = socket.inet_aton(MDNS_GROUP)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + own)
        yield sock


def _own_networks() -> list[ipaddress.IPv4Interface]:
    return [
        ipaddress.IPv4Interface(f"{address.ip}/{address.network_prefix}")
        for adapter in ifaddr.get_adapters()
        for address in adapter.ips
        if address.is_IPv4
    ]


def ip_of(host: str) -> IpAddress | None:
    """Return the IP address that a text is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def owns_port(pid: int, port: int) -> bool:
    """Return whether a process listens on a port; True where that cannot be seen."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # a broker with file capabilities
        return True
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def listen_hint(listen: str, otherwise: str) -> str:
    """Return what to do where nobody can listen: no card has the address, or `otherwise`."""
    if bindable(listen, 0):
        return otherwise
    own = ", ".join(("127.0.0.1", *lan_addresses()))
    return f"{listen} is not an address of this machine; listen on {own}, or on 0.0.0.0 for all"


def bound(listen: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address and a port, 0 for a free one; or `OSError`."""
    sock = socket.socket(socket.AF_INET6 if ":" in listen else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((listen, port))
    except OSError:
        sock.close()
        raise
    return sock


def bindable(listen: str, port: int) -> bool:
    """Return whether a port is free to listen on."""
    with suppress(OSError), bound(listen, port):
        return True
    return False


def free_port(listen: str) -> int:
    """Return a port that is free now."""
    with bound(listen, 0) as sock:
        return int(sock.getsockname()[1])


async def _look_up(host: str, port: int) -> list[tuple[Any, ...]]:
    """Return what `socket.getaddrinfo` finds, in a thread that no end of the process waits for."""
    found: Future[list[tuple[Any, ...]]] = Future()

    def work() -> None:
        found.set_running_or_notify_cancel()
        try:
            found.set_result(
                list(socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM))
            )
        except (OSError, ValueError) as error:
            found.set_exception(error)

    threading.Thread(target=work, name="look-up", daemon=True).start()
    return await asyncio.wrap_future(found)


class Cover(Protocol):
    """What encrypts a connection to a broker."""

    def client_context(self) -> ssl.SSLContext:
        """Return a context that shows our certificate and checks the broker's."""

    def check_peer(self, peer: socket.socket) -> None:
        """Raise `PeerRefusedError` if who answered is another than expected."""


async def connected(
    host: str, port: int, cover: Cover | None, *, verdict: bool = True
) -> socket.socket:
    """Return a non-blocking socket that is connected, encrypted where there is a cover.

    Nothing was sent yet, and who answered is who the cover asks for. With `verdict` the other
    end has had its say about our certificate as well.
    """
    # A context of its own: certificates may be newer than those of the last connection.
    context = cover.client_context() if cover is not None else None
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        found = await _look_up(host, port)
    last = OSError("no address")
    for family, kind, proto, _, where in found:
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for level, option, value in HALF_OPEN:
                sock.setsockopt(level, option, value)
            # Each address has its time: a name may have one where nobody answers.
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(sock, where)
        except OSError as error:
            sock.close()
            # asyncio's own text repeats the address.
            last = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
        except BaseException:
            sock.close()
            raise
        else:
            if cover is None or context is None:
                return sock
            secure = await _encrypted(sock, context, host, verdict=verdict)
            try:
                cover.check_peer(secure)
            except BaseException:
                secure.close()
                raise
            return secure
    try:
        raise last
    finally:
        del last  # it leads to this frame: the context would wait for the collector


async def refusal(host: str, port: int, cover: Cover | None = None) -> str:
    """Return why nobody is there, or another than the cover asks for; empty if all is well."""
    try:
        async with asyncio.timeout(ANSWER_S if cover is None else None):
            (await connected(host, port, cover, verdict=False)).close()
    except (OSError, LinkError) as error:
        return connect_reason(error)
    return ""


async def _encrypted(
    sock: socket.socket, context: ssl.SSLContext, host: str, *, verdict: bool
) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        sock = secure = context.wrap_socket(
            sock, server_hostname=host, do_handshake_on_connect=False
        )
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            while True:
                try:
                    secure.do_handshake()
                except ssl.SSLWantReadError:
                    await _ready(loop.add_reader, loop.remove_reader, secure)
                except ssl.SSLWantWriteError:
                    await _ready(loop.add_writer, loop.remove_writer, secure)
                else:
                    break
            if verdict:
                await _hear_verdict(secure)
            return secure
    except BaseException:
        sock.close()
        raise


async def _hear_verdict(secure: ssl.SSLSocket) -> None:
    """Wait for what the other end makes of our certificate; its refusal is raised in its words.

    In TLS 1.3 that follows the handshake: a ticket or an alert. Had we written before, the alert
    would be lost with the connection.
    """
    loop = asyncio.get_running_loop()
    with suppress(TimeoutError):
        async with asyncio.timeout(VERDICT_S):
            await _ready(loop.add_reader, loop.remove_reader, secure)
    with suppress(ssl.SSLWantReadError):
        if not secure.recv(1):
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        raise OSError("it sends data before it is asked, which no MQTT broker does")


async def _ready(add: Callable[..., Any], remove: Callable[..., Any], sock: socket.socket) -> None:
    future = asyncio.get_running_loop().create_future()
    add(sock.fileno(), future.set_result, None)
    try:
        await future
    finally:
        remove(sock.fileno())


def counted_as(host: str) -> str:
    """Return whose tries and connections are counted: an address, or the network of an IPv6 one."""
    found = ip_of(host.partition("%")[0])
    if found is None:
        return "unknown"
    if found.version == 6 and not found.is_loopback:
        mapped = found.ipv4_mapped
        return str(mapped or ipaddress.ip_network((found, 64), strict=False))
    return str(found)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]
"""Handles one connection and is told its address; `Listener` closes it."""


class Listener:
    """Listens on TCP until closed, with few places, each for a while.

    Where all are taken the first of the address that has most is hung up: however many connections
    a few addresses make, one from elsewhere is let in.
    """

    def __init__(self, serve: Serve, *, most: int, deadline_s: float) -> None:
        self._serve = serve
        self._most = most
        self.deadline_s = deadline_s
        self.broken_off: Callable[[], object] = lambda: None
        """Called for each connection that ended too early or too late."""
        self.places: dict[asyncio.StreamWriter, str] = {}
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listen: str | None, port: int) -> int:
        """Listen, everywhere without an address; return the port. `OSError` if it cannot."""
        self._server = await asyncio.start_server(
            self._enter, listen, port, limit=READ_AHEAD_BYTES, backlog=self._most
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and hang up. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in self.places:
            # Not cancelled: streams of Python 3.11 log that as an error.
            writer.transport.abort()
        if ending := set(filter(None, self._tasks)):
            await asyncio.wait(ending, timeout=1.0)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.places) >= self._most:
            crowd = Counter(self.places.values()).most_common(1)[0][0]
            first = next(other for other, address in self.places.items() if address == crowd)
            del self.places[first]
            with suppress(OSError):  # not aborted: streams of Python 3.11 break in a handshake
                first.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        peer, task = writer.get_extra_info("peername"), asyncio.current_task()
        self.places[writer] = counted_as(str(peer[0])) if peer else "unknown"
        self._tasks.add(task)
        try:
            async with asyncio.timeout(self.deadline_s):
                await self._serve(reader, writer, self.places[writer])
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            self.broken_off()
        finally:
            self._tasks.discard(task)
            self.places.pop(writer, None)
            writer.close()


async def cancelled(*work: "asyncio.Future[Any] | None") -> None:
    """Cancel what is there, and wait until it has ended."""
    there = [one for one in work if one is not None]
    for one in there:
        one.cancel()
    await asyncio.gather(*there, return_exceptions=True)


async def in_step(every_s: float) -> None:
    """Sleep to the next multiple of a period on the monotonic clock.

    What a process does now and then it does in the same wake-ups: a device that waits sleeps.
    """
    await asyncio.sleep(every_s - time.monotonic() % every_s)


@dataclass(slots=True)
class Backoff:
    """Full-jitter backoff: uniform between zero and a bound that doubles.

    After power returns to a hundred devices, a merely scaled delay would keep them in step.
    """

    first_s: float = 0.2
    cap_s: float = 20.0
    attempt: int = 0

    def next(self) -> float:
        """Return how long to wait now."""
        bound, part = self.draw()
        return part * bound

    def draw(self) -> tuple[float, float]:
        """Return the longest wait now, and which part of it to wait."""
        bound = min(self.cap_s, self.first_s * 2.0 ** min(self.attempt, 30))
        self.attempt += 1
        return bound, random.random()  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """Start again with the shortest bound."""
        self.attempt = 0
