"""The access list of a shared broker, from the enrolments of a site."""

from pathlib import Path

import pytest

from fedagent_coordinator.site import open_site
from fedagent_node.acl import AccessList
from fedagent_node.data_dir import load_or_create
from tests.typed import fedagent


@pytest.mark.parametrize("kind", ["mosquitto", "emqx"])
def test_the_list_is_that_of_the_table(tmp_path: Path, kind: str) -> None:
    open_site(tmp_path, "barn")
    done = fedagent("broker", "acl", "--for", kind, "--data-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    table = AccessList("barn", (f"c/{load_or_create(tmp_path).id}",))
    rules = [line for line in done.stdout.splitlines() if not line.startswith(("#", "%%"))]
    assert rules == getattr(table, kind)().splitlines()


def test_where_no_site_was_founded_it_says_so(tmp_path: Path) -> None:
    done = fedagent("broker", "acl", "--data-dir", str(tmp_path))
    assert done.returncode != 0
    assert "no site in" in done.stderr
