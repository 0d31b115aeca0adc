"""What the process of the embedded broker is told."""

import ssl
from pathlib import Path

import msgspec

from fedagent_node.address import TlsFiles


class EmbeddedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The command line of the broker process, as JSON; `password` is the SHA-256 of it."""

    host: str
    port: int
    max_packet_bytes: int
    ca: str = ""
    cert: str = ""
    key: str = ""
    crl: str = ""
    least: int = ssl.TLSVersion.TLSv1_2
    certified: bool = False
    owner: str = ""
    site: str = ""
    password: str = ""

    @property
    def tls(self) -> TlsFiles | None:
        """The certificate files, or None for plain TCP."""
        if not self.cert:
            return None
        crl = Path(self.crl) if self.crl else None
        least = ssl.TLSVersion(self.least)
        return TlsFiles(Path(self.ca), Path(self.cert), Path(self.key), crl, least)
