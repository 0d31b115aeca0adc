from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from fedagent_node.address import TlsFiles
from fedagent_node.broker.mosquitto import mosquitto_program

KINDS = [
    pytest.param("mosquitto", marks=pytest.mark.mosquitto),
    "embedded",
]


@pytest.fixture(autouse=True)
def _needs_mosquitto(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("mosquitto") and mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


class Pki:
    """A throw-away authority and what it signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.stranger = trustme.CA()
        self.broker = self.files("broker", self.ca)
        self.client = self.files("client", self.ca)
        self.wrong_ca = self.files("wrong", self.stranger, trusts=self.ca)
        past = datetime.now(UTC) - timedelta(days=1)
        self.expired = self.files("expired", self.ca, not_after=past)

    def files(
        self,
        name: str,
        signer: trustme.CA,
        *,
        trusts: trustme.CA | None = None,
        not_after: datetime | None = None,
    ) -> TlsFiles:
        start = datetime.now(UTC) - timedelta(days=10)
        cert = signer.issue_cert(
            "localhost", "127.0.0.1", common_name=name, not_before=start, not_after=not_after
        )
        ca, chain, key = (self.folder / f"{name}.{part}.pem" for part in ("ca", "cert", "key"))
        (trusts or signer).cert_pem.write_to_path(ca)
        chain.write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
        cert.private_key_pem.write_to_path(key)
        return TlsFiles(ca, chain, key)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))
