"""What kind of private broker to run, and where; the embedded one's process gets it as JSON."""

from pathlib import Path
from typing import Literal, Self

import msgspec

from fedagent_node.address import TlsFiles

from .acl import AccessList


class BrokerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A private broker; beyond loopback it needs TLS or `insecure`.

    With certificates of the site (`certified`), which name identities, only what `access` allows is
    done; without them anybody may do anything.
    """

    data_dir: Path  # for the port, the configuration and the log
    kind: Literal["auto", "mosquitto", "embedded"] = "auto"
    listen: str = "127.0.0.1"
    port: int = 0  # the one used last, else a free one
    tls: TlsFiles | None = None
    certified: bool = False  # whether `tls` is of a site
    owner: str = ""  # ``e/ID`` or ``c/ID``
    site: str = ""  # the owner's
    revoked: frozenset[str] = frozenset()  # ids that may do nothing, whatever certificate they show
    insecure: bool = False
    max_packet_bytes: int = 1 << 20  # larger packets end the connection they come from
    name: str = "broker"

    @property
    def access(self) -> AccessList | None:
        """Who may do what; None is everybody everything."""
        return AccessList(self.site, (self.owner,), self.revoked) if self.certified else None

    def to_json(self) -> str:
        """Return it for another process."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` gave."""
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))
