"""A private mosquitto: its files, and the end of a session that it would keep."""

import asyncio
import os
import shutil
from pathlib import Path

from fedagent_node.data_dir import write_private

from .acl import BrokerSpec

MAX_CONNECTIONS = 1200
"""Each may be half-open, and costs 60 KB then; mosquitto closes what is silent for 90 s."""
MAX_QUEUED_MESSAGES = 400
MAX_QUEUED_BYTES = 32 << 20
"""Per subscriber, as the messages. The receivers' credit keeps honest roles far below."""
MAX_INFLIGHT = 100
MEMORY_LIMIT = 80 << 20
"""Of all that mosquitto allocates itself; OpenSSL's share is not counted."""
_CUT_S = 2.0


def mosquitto_program() -> str | None:
    """Return the mosquitto program; it is often outside a user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def config_path(spec: BrokerSpec) -> Path:
    """Return the file that mosquitto is started with."""
    return spec.data_dir.absolute() / f"{spec.name}.mosquitto.conf"


def write_files(spec: BrokerSpec, port: int) -> bool:
    """Write all files; return whether a running mosquitto can take them in by SIGHUP."""
    path = config_path(spec)
    lines = [
        "per_listener_settings true",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_timestamp false",
        "persistence false",
        "retain_available false",
        "set_tcp_nodelay true",
        f"max_packet_size {spec.max_packet_bytes}",
        f"message_size_limit {spec.max_packet_bytes}",
        f"max_inflight_messages {MAX_INFLIGHT}",
        f"max_queued_messages {MAX_QUEUED_MESSAGES}",
        f"max_queued_bytes {MAX_QUEUED_BYTES}",
        f"memory_limit {MEMORY_LIMIT}",
        "max_keepalive 300",
        f"listener {port} {spec.listen}".rstrip(),
        f"max_connections {MAX_CONNECTIONS}",
    ]
    if os.geteuid() == 0:
        # Otherwise it becomes a user that may not read our files, and the change
        # of user would clear the signal that ends it with its parent.
        lines.insert(0, "user root")
    if spec.tls is not None:
        lines += [
            f"cafile {spec.tls.ca.absolute()}",
            f"certfile {spec.tls.cert.absolute()}",
            f"keyfile {spec.tls.key.absolute()}",
            "require_certificate true",
        ]
        if spec.tls.crl is not None and spec.tls.crl.exists():
            lines.append(f"crlfile {spec.tls.crl.absolute()}")
    if spec.access is None:
        lines.append("allow_anonymous true")
    else:
        rules = path.with_name(f"{spec.name}.acl")
        write_private(rules, spec.access.mosquitto().encode())
        lines += [
            f"acl_file {rules}",
            "tls_version tlsv1.3",
            "use_identity_as_username true",
            "use_username_as_clientid true",
            "allow_anonymous false",
            f"listener 0 {spec.name}.sock",
            "allow_anonymous true",
        ]
    config = ("\n".join(lines) + "\n").encode()
    same = path.exists() and path.read_bytes() == config
    write_private(path, config)
    return same


async def cut_sessions(spec: BrokerSpec, names: list[str]) -> None:
    """End the sessions of identities: their client ids are taken over, by the side door."""
    folder = os.open(spec.data_dir, os.O_PATH | os.O_CLOEXEC)
    try:
        # By descriptor, because the path of a socket has 107 bytes at most.
        door = f"/proc/self/fd/{folder}/{spec.name}.sock"
        for name in names:
            async with asyncio.timeout(_CUT_S):
                reader, writer = await asyncio.open_unix_connection(door)
                writer.write(connect_packet(name))
                await reader.readexactly(4)
                writer.close()
    finally:
        os.close(folder)


def connect_packet(client_id: str) -> bytes:
    """Return an MQTT 3.1.1 CONNECT with a clean session and a keep-alive of 10 s."""
    name = client_id.encode()
    body = b"\x00\x04MQTT\x04\x02\x00\x0a" + len(name).to_bytes(2, "big") + name
    return bytes([0x10, len(body)]) + body
