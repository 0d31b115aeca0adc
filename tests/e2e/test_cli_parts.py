"""The command line's own parts: places, configuration, output, the doctor's lines."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.core.opinions import PrivacySettings
from fedagent_cli import checks, doctor, launch, output, places
from fedagent_cli.checks import Finding, Level
from fedagent_cli.errors import UsageError
from fedagent_cli.options import examples
from fedagent_protocol.extras import how_to_add
from tests.documents.machines import Space, why_not


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedagent_cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_name_has_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAGENT_HOME", str(tmp_path))
    assert places.data_dir("agent") == tmp_path / "agent"
    assert places.data_dir("agent", "kitchen") == tmp_path / "agent-kitchen"
    for bad in ("../up", "", "a/b", "x" * 80):
        with pytest.raises(UsageError, match="not a name"):
            places.data_dir("agent", bad)


def test_recipes_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("")
    assert places.find_recipe(str(own)) == own.resolve()
    for name in places.recipe_names():
        assert places.find_recipe(name).is_file()
    with pytest.raises(UsageError, match="digits"):
        places.find_recipe("no-such-recipe")


def test_options_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text('name = "hall"\nport = 1\n[tls]\nca = "a"\n')
    merged = launch.merge(launch.read_config(file), {"port": 2, "site": None, "edges": []})
    assert merged == {"name": "hall", "port": 2, "tls": {"ca": "a"}}
    table: launch.Config = {"price": {"base": 1.0, "per_compute": 2.0}}
    asked = {"price": {"base": 3.0, "per_compute": None}}
    assert launch.merge({}, asked) == {"price": {"base": 3.0}}
    assert launch.merge(table, asked) == {"price": {"base": 3.0, "per_compute": 2.0}}
    assert launch.merge(table, {"price": {"base": None}}) == table
    assert launch.merge({}, {"price": {"base": None}}) == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.toml", b"= 3"),
        ("utf-16.toml", b"\xff\xfe=\0"),
        ("a.json", b"{"),
        ("b.json", b"[]"),
        ("utf-16.json", b"\xff\xfe{\0"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        launch.read_config(file)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        launch.read_config(tmp_path)


def test_tls_needs_all_three_files(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    assert launch.tls(None, None, None) is None
    with pytest.raises(UsageError, match="--tls-cert, --tls-key"):
        launch.tls(ca, None, None)
    with pytest.raises(UsageError, match="no file"):
        launch.tls(ca, ca, tmp_path / "absent")
    assert launch.tls(ca, ca, ca) == {"ca": str(ca), "cert": str(ca), "key": str(ca)}


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_credits_are_shown_exactly(micro: int) -> None:
    text = output.credits_text(micro).replace(",", "")
    whole, _, part = text.lstrip("-").partition(".")
    assert (-1 if text.startswith("-") else 1) * int(whole + part.ljust(6, "0")) == micro


def test_the_doctor_says_the_worst() -> None:
    fine, odd, bad = (Finding("x", level, "text", "hint") for level in Level)
    assert doctor.exit_code([fine]) == 0
    assert doctor.exit_code([fine, odd]) == 44
    assert doctor.exit_code([odd, bad, fine]) == 45
    assert doctor.line(bad).startswith("FAIL")
    assert doctor.line(bad).endswith("hint")


def test_every_check_ends_in_one_line_with_a_hint(tmp_path: Path) -> None:
    for check in checks.all_checks(tmp_path / "not" / "there"):
        finding = check()
        assert "\n" not in doctor.line(finding)
        assert finding.level is Level.OK or finding.hint


def test_the_doctor_says_what_opinions_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.opinions(PrivacySettings()).level is Level.OK
    limits = PrivacySettings(max_epsilon=0.5, total_epsilon=20)
    for there, level in ((True, Level.OK), (False, Level.WARN)):
        monkeypatch.setattr(checks, "find_spec", lambda _name, there=there: there or None)
        found = checks.opinions(limits)
        assert found.level is level
        assert "with noise only, epsilon at most 0.5 each, 20 in a run" in found.text
    assert found.hint == how_to_add("privacy")
    limits = PrivacySettings(lifetime_epsilon=30, declared_only=True)
    assert "30 ever, to declared neighbours only" in checks.opinions(limits).text
    limits = PrivacySettings(declared_only=True)
    assert "noised or not, to declared neighbours only" in checks.opinions(limits).text


@pytest.mark.skipif(bool(why_not()), reason="the doctor asks the network: it needs one of its own")
def test_doctor_json_is_one_object() -> None:
    with closing(Space()) as space:
        line = [*space.enter, sys.executable, "-m", "fedagent_cli.main", "doctor", "--json"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    record = json.loads(done.stdout)
    assert done.returncode == record["exit_code"]
    assert {check["check"] for check in record["checks"]} >= {"python", "mdns", "broker", "fsync"}


def test_a_usage_error_is_one_line_and_exit_code_2() -> None:
    done = run("coordinator", "start", "--recipe", "no-such", "--json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)["exit_code"] == 2


def test_help_and_version() -> None:
    assert "coordinator" in run("--help").stdout
    assert run("--version").stdout.startswith("fedagent ")
    assert "fedagent demo" in examples("fedagent demo")


def test_the_help_does_not_load_what_it_does_not_need() -> None:
    code = (
        "import sys, fedagent_cli.main; "
        "print(sorted({'numpy', 'zeroconf', 'paho', 'matplotlib', 'psutil', "
        "'cryptography', 'rich.live'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
