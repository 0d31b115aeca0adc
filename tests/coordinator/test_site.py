"""The site at its coordinator."""

import time
from pathlib import Path

import pytest

from fedagent_coordinator.errors import RefusedError
from fedagent_coordinator.site.folder import open_site
from fedagent_node.data_dir import load_or_create
from fedagent_node.errors import CredentialsError


def test_a_site_is_founded_once(tmp_path: Path) -> None:
    first = open_site(tmp_path, "hall")
    again = open_site(tmp_path, "hall")
    assert first == again
    assert first.credentials.certificate.role == "coordinator"
    assert first.credentials.certificate.id == load_or_create(tmp_path).id
    assert first.credentials.revocations().serials == frozenset()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "site").iterdir())
    with pytest.raises(RefusedError, match="belongs to site 'hall'"):
        open_site(tmp_path, "attic")


def test_the_own_certificate_is_renewed_at_two_thirds(tmp_path: Path) -> None:
    now = time.time()
    first = open_site(tmp_path, "hall").credentials.certificate
    assert open_site(tmp_path, "hall", now=now + 86_400 * 19).credentials.certificate == first
    later = now + 86_400 * 20.1
    assert open_site(tmp_path, "hall", now=later).credentials.certificate.not_before > now + 86_400


def test_a_lost_key_is_said(tmp_path: Path) -> None:
    open_site(tmp_path, "hall")
    (tmp_path / "site" / "authority.key").unlink()
    with pytest.raises(CredentialsError, match="every device has to join again"):
        open_site(tmp_path, "hall")
