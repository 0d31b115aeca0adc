"""The system's mosquitto: where it is, and the configuration of a private one."""

import os
import shutil

from .address import TlsFiles

MAX_QUEUED_BYTES = 48 << 20
"""Per subscriber. The receivers' credit keeps honest roles far below."""


def mosquitto_program() -> str | None:
    """Return the mosquitto program; it is often outside a user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def mosquitto_config(*, listen: str, port: int, tls: TlsFiles | None, max_packet_bytes: int) -> str:
    """Return the configuration of a private mosquitto, for version 2.0.11 and later."""
    lines = [
        "per_listener_settings true",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "persistence false",
        "set_tcp_nodelay true",
        f"max_packet_size {max_packet_bytes}",
        f"message_size_limit {max_packet_bytes}",
        # Application credit bounds what is under way; a small window here would
        # only add round trips.
        "max_inflight_messages 1000",
        "max_queued_messages 10000",
        f"max_queued_bytes {MAX_QUEUED_BYTES}",
        "max_keepalive 300",
        f"listener {port} {listen}".rstrip(),
    ]
    if os.geteuid() == 0:
        # Otherwise it becomes a user that may not read our files, and the change
        # of user would clear the signal that ends it with its parent.
        lines.insert(0, "user root")
    if tls is None:
        lines.append("allow_anonymous true")
    else:
        lines += [
            f"cafile {tls.ca.absolute()}",
            f"certfile {tls.cert.absolute()}",
            f"keyfile {tls.key.absolute()}",
            "require_certificate true",
            "use_identity_as_username true",
            "allow_anonymous false",
        ]
    return "\n".join(lines) + "\n"
