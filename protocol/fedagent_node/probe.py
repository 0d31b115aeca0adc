"""Whether a broker answers and is ours, and which ports are free."""

import asyncio
import os
import secrets
import socket

import psutil

from .address import BrokerAddress
from .errors import connect_reason

ANSWER_S = 2.0
_CONNACK = b"\x20\x02\x00\x00"
_DISCONNECT = b"\xe0\x00"


async def answers(address: BrokerAddress) -> bool:
    """Return whether an MQTT broker accepts a CONNECT there; with TLS, a connection.

    The exchange is two fixed packets, so that it needs no thread and no client.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                if address.scheme == "mqtts":
                    return True
                writer.write(_connect_packet())
                reply = await reader.readexactly(len(_CONNACK))
                writer.write(_DISCONNECT)
                await writer.drain()
                return reply == _CONNACK
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False


async def refusal(host: str, port: int) -> str:
    """Return why no connection is accepted there, in a few words; empty if one is."""
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError as error:
        return connect_reason(error)
    except OSError as error:
        # asyncio's own text repeats the address.
        return os.strerror(error.errno) if error.errno else connect_reason(error)
    writer.close()
    return ""


def owns_port(pid: int, port: int) -> bool:
    """Return whether a process listens on a port; True where that cannot be seen."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def bindable(listen: str, port: int) -> bool:
    """Return whether a port is free to listen on."""
    try:
        with _socket(listen) as sock:
            sock.bind((listen, port))
    except OSError:
        return False
    return True


def free_port(listen: str) -> int:
    """Return a port that is free now."""
    with _socket(listen) as sock:
        sock.bind((listen, 0))
        port: int = sock.getsockname()[1]
        return port


def _socket(listen: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in listen else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def _connect_packet() -> bytes:
    client_id = f"probe-{secrets.token_hex(4)}".encode()
    body = b"\x00\x04MQTT\x04\x02\x00\x0a" + len(client_id).to_bytes(2, "big") + client_id
    return bytes([0x10, len(body)]) + body
