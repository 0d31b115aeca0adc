"""The access list of a shared broker, from the enrolments of a site."""

import json
import time
from pathlib import Path

import pytest

from fedagent_coordinator.site.folder import open_site
from fedagent_node.site.credentials import load_credentials
from tests.typed import fedagent


def test_a_shared_brokers_certificate_is_of_the_site_and_is_renewed_for_the_same_key(
    tmp_path: Path,
) -> None:
    home, folder = ("--data-dir", str(tmp_path / "c")), tmp_path / "broker"
    made = ("broker", "--to", str(folder), *home)
    first = fedagent(*made, "--site", "barn")
    assert first.returncode == 0, first.stderr
    held = load_credentials(folder)
    assert held is not None
    assert (held.certificate.role, held.certificate.site) == ("broker", "barn")
    assert f"keyfile {held.key}" in first.stdout
    assert held.key.stat().st_mode & 0o777 == 0o600
    again = json.loads(fedagent(*made, "--days", "3", "--json").stdout)
    assert again["id"] == held.certificate.id
    renewed = load_credentials(folder)
    assert renewed is not None
    assert renewed.certificate.serial != held.certificate.serial
    assert 3 * 86_400 <= renewed.certificate.not_after - time.time() + 60 < 4 * 86_400
    assert fedagent("devices", "revoke", "broker", *home).returncode == 0
    assert "its key was revoked" in fedagent(*made).stderr
    other = fedagent("broker", "--to", str(tmp_path / "new"), *home)
    assert other.returncode == 0
    new = load_credentials(tmp_path / "new")
    assert new is not None
    assert new.revocations().serials == {held.certificate.serial, renewed.certificate.serial}


@pytest.mark.parametrize(
    ("to", "site", "said"),
    [
        ("c", "barn", "is the data directory of the coordinator"),
        ("b", "other", "belongs to site 'barn'"),
    ],
)
def test_a_brokers_certificate_is_put_over_nobody_elses(
    tmp_path: Path, to: str, site: str, said: str
) -> None:
    home = tmp_path / "c"
    open_site(home, "barn")
    where = ("--to", str(tmp_path / to), "--site", site, "--data-dir", str(home))
    done = fedagent("broker", *where)
    assert done.returncode == 2
    assert said in done.stderr
    kept = load_credentials(home)
    assert kept is not None
    assert kept.certificate.role == "coordinator"
