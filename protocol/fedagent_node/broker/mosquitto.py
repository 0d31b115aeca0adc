"""A private mosquitto: its files, and the end of a session that it would keep."""

import asyncio
import base64
import hashlib
import os
import secrets
import shutil
from pathlib import Path

from fedagent_node.address import TlsFiles
from fedagent_node.broker.acl import AccessList
from fedagent_node.data_dir import write_private

MAX_CONNECTIONS = 1200
"""Each may be half-open, and costs 60 KB then; mosquitto closes what is silent for 90 s."""
MAX_QUEUED_MESSAGES = 400
MAX_QUEUED_BYTES = 32 << 20
"""Per subscriber, as the messages. The receivers' credit keeps honest roles far below."""
MAX_INFLIGHT = 100
MEMORY_LIMIT = 80 << 20
"""Of all that mosquitto allocates itself; OpenSSL's share is not counted."""
_CUT_S = 2.0
_ITERATIONS = 101


def mosquitto_program() -> str | None:
    """Return the mosquitto program; it is often outside a user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Mosquitto:
    """The files of one mosquitto, version 2.0.11 or later, in a folder that is private.

    With an access list, `certified` says whether names come from certificates. Otherwise the
    list's owner has `password`, and everybody else is nobody known.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        access: AccessList | None,
        password: str,
        tls: TlsFiles | None,
        certified: bool,
    ) -> None:
        self._folder = folder.absolute()
        self._name = name
        self.access = access
        self._password = password
        self._tls = tls
        self._certified = certified

    @property
    def config_path(self) -> Path:
        """The file that mosquitto is started with."""
        return self._folder / f"{self._name}.mosquitto.conf"

    def write(self, *, listen: str, port: int, max_packet_bytes: int) -> bool:
        """Write all files; return whether a running mosquitto can take them in by SIGHUP."""
        if self.access is not None:
            text = self.access.mosquitto(certificates=self._certified)
            write_private(self._path("acl"), text.encode())
            if not self._certified:
                hashed = (_hashed(name, self._password) for name in self.access.named)
                write_private(self._path("passwd"), "".join(hashed).encode())
        config = self._config(listen=listen, port=port, max_packet_bytes=max_packet_bytes).encode()
        same = self.config_path.exists() and self.config_path.read_bytes() == config
        write_private(self.config_path, config)
        return same

    async def cut(self, names: list[str]) -> None:
        """End the sessions of identities: their client ids are taken over, by the side door."""
        folder = os.open(self._folder, os.O_PATH | os.O_CLOEXEC)
        try:
            # By descriptor, because the path of a socket has 107 bytes at most.
            door = f"/proc/self/fd/{folder}/{self._name}.sock"
            for name in names:
                async with asyncio.timeout(_CUT_S):
                    reader, writer = await asyncio.open_unix_connection(door)
                    writer.write(connect_packet(name))
                    await reader.readexactly(4)
                    writer.close()
        finally:
            os.close(folder)

    def _path(self, kind: str) -> Path:
        return self._folder / f"{self._name}.{kind}"

    def _config(self, *, listen: str, port: int, max_packet_bytes: int) -> str:
        lines = [
            "per_listener_settings true",
            "log_dest stderr",
            "log_type error",
            "log_type warning",
            "log_type subscribe",
            "log_timestamp false",
            "persistence false",
            "retain_available false",
            "set_tcp_nodelay true",
            f"max_packet_size {max_packet_bytes}",
            f"message_size_limit {max_packet_bytes}",
            f"max_inflight_messages {MAX_INFLIGHT}",
            f"max_queued_messages {MAX_QUEUED_MESSAGES}",
            f"max_queued_bytes {MAX_QUEUED_BYTES}",
            f"memory_limit {MEMORY_LIMIT}",
            "max_keepalive 300",
            f"listener {port} {listen}".rstrip(),
            f"max_connections {MAX_CONNECTIONS}",
        ]
        if os.geteuid() == 0:
            # Otherwise it becomes a user that may not read our files, and the change
            # of user would clear the signal that ends it with its parent.
            lines.insert(0, "user root")
        if self.access is not None:
            lines.append(f"acl_file {self._path('acl')}")
        return "\n".join(lines + self._entry()) + "\n"

    def _entry(self) -> list[str]:
        """Return who is let in."""
        lines = []
        if self._tls is not None:
            lines += [
                f"cafile {self._tls.ca.absolute()}",
                f"certfile {self._tls.cert.absolute()}",
                f"keyfile {self._tls.key.absolute()}",
                "require_certificate true",
            ]
            if self._tls.crl is not None and self._tls.crl.exists():
                lines.append(f"crlfile {self._tls.crl.absolute()}")
        if self._certified:
            return [
                *lines,
                "tls_version tlsv1.3",
                "use_identity_as_username true",
                "use_username_as_clientid true",
                "allow_anonymous false",
                f"listener 0 {self._name}.sock",
                "allow_anonymous true",
            ]
        if self.access is not None:
            lines.append(f"password_file {self._path('passwd')}")
        return [*lines, "allow_anonymous true"]


def connect_packet(client_id: str) -> bytes:
    """Return an MQTT 3.1.1 CONNECT with a clean session and a keep-alive of 10 s."""
    name = client_id.encode()
    body = b"\x00\x04MQTT\x04\x02\x00\x0a" + len(name).to_bytes(2, "big") + name
    return bytes([0x10, len(body)]) + body


def _hashed(name: str, password: str) -> str:
    """Return a line of a password file, in the form that ``mosquitto_passwd`` writes."""
    salt = secrets.token_bytes(12)
    key = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    coded = (base64.b64encode(part).decode() for part in (salt, key))
    return f"{name}:$7${_ITERATIONS}${'$'.join(coded)}\n"
