"""Peers of another protocol version: each is refused once, in one line."""

from dataclasses import dataclass, field

from .messages import PROTOCOL_VERSION

MAX_PEERS = 256


@dataclass(slots=True)
class OtherVersions:
    """Remembers whom it has refused, so that a heartbeat is one line and not one a second.

    Attributes:
        role: Who refuses, for the line.
    """

    role: str
    _refused: dict[str, int] = field(default_factory=dict)

    def refuse(self, peer: str, version: int) -> str:
        """Return the line for the log; empty if it was said of this peer and version before."""
        full = len(self._refused) >= MAX_PEERS and peer not in self._refused
        if full or self._refused.get(peer) == version:
            return ""
        self._refused[peer] = version
        return mismatch(version, self.role)


def mismatch(version: int, role: str) -> str:
    """Return why a peer of this version is refused, and what to do."""
    return (
        f"speaks protocol {version}, the {role} {PROTOCOL_VERSION}: "
        "install the same release of fedagent on both"
    )
