"""What CI installs is locked, with hashes, and fits what the project asks for."""

import json
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
BLOCKS = re.split(r"\n(?=[a-z])", (ROOT / "deploy/ci.lock").read_text().strip())
LOCKED = [
    (canonicalize_name(found[1]), Version(found[2]), block)
    for block in BLOCKS
    if (found := re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\\n]+)", block))
]


def _asked() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return sorted({one for group in groups for one in group})


@pytest.mark.parametrize("text", _asked())
def test_every_dependency_is_locked_at_a_version_that_fits(text: str) -> None:
    wanted = Requirement(text)
    name = canonicalize_name(wanted.name)
    if name in {"fedagent", "torch"}:  # ourselves; built by system, pinned in pyproject.toml
        return
    versions = [version for locked, version, _ in LOCKED if locked == name]
    assert versions, "run `make lock`"
    assert all(one in wanted.specifier for one in versions), "run `make lock`"


def test_every_package_of_the_lock_has_hashes() -> None:
    assert len(LOCKED) == len(BLOCKS)
    assert [name for name, _, block in LOCKED if "--hash=sha256:" not in block] == []


KNOWN = {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
SOUND = {"name": "b", "version": "1", "vulns": []}
UNASKED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (None, 1, "nothing was audited: no network"),
        ([], 1, "0 of 0"),
        ([SOUND], 0, "1 of 1 locked packages were audited, 0 advisories"),
        ([SOUND, UNASKED], 1, "1 of 2"),
        ([SOUND, KNOWN], 1, "a 1: CVE-1; fixed in: 2"),
    ],
)
def test_an_audit_passes_only_if_all_was_audited(
    answer: list[object] | None,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = "" if answer is None else json.dumps({"dependencies": answer})
    done = subprocess.CompletedProcess([], 1, told, "no network\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert runpy.run_path(str(ROOT / "deploy/audit.py"))["main"]() == code
    assert words in capsys.readouterr().out
