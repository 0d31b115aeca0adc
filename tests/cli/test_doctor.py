"""What the doctor says."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from fedagent_agent.core.opinions import PrivacySettings
from fedagent_cli.doctor import checks
from fedagent_cli.doctor import command as doctor
from fedagent_cli.doctor import network as adverts
from fedagent_cli.doctor.checks import Finding, Level, of_adverts
from fedagent_cli.doctor.network import Seen
from fedagent_node.address import BrokerAddress
from fedagent_node.discovery.advert import Advert
from fedagent_node.errors import JoinError
from fedagent_node.site.certificates import Role
from fedagent_protocol.extras import how_to_add
from tests.documents.machines import Space, why_not
from tests.fakes.site import Members


def seen(**refused: str) -> Seen:
    advert = Advert("coordinator", "aa", "default", BrokerAddress("10.0.0.1", 1), 1)
    return Seen(advert, {f"{place}:1": reason for place, reason in refused.items()})


@pytest.mark.parametrize(
    ("one", "level"),
    [
        (seen(lan=""), Level.OK),
        (seen(lan="", other_card="Network is unreachable"), Level.OK),
        (seen(lan="Connection refused", other_card="Network is unreachable"), Level.WARN),
    ],
)
def test_one_address_that_answers_is_enough(one: Seen, level: Level) -> None:
    finding = of_adverts([one])
    assert finding.level is level
    assert ("unreachable" in finding.text) is (level is Level.WARN)


def test_an_address_of_ipv6_is_told_in_brackets() -> None:
    with socket.socket() as sock:  # bound, and not listened on: who connects is refused
        sock.bind(("127.0.0.1", 0))
        broker = BrokerAddress("127.0.0.1", sock.getsockname()[1])
        advert = Advert("edge", "aa", "default", broker, 1, hosts=("::1", "127.0.0.1"))
        found = asyncio.run(adverts._tried(advert))
    assert [*found.refused] == [f"[::1]:{broker.port}", f"127.0.0.1:{broker.port}"]
    assert not found.reached


def test_the_doctor_says_the_worst() -> None:
    fine, odd, bad = (Finding(level, "text", "hint") for level in Level)
    assert doctor.exit_code([fine]) == 0
    assert doctor.exit_code([fine, odd]) == 44
    assert doctor.exit_code([odd, bad, fine]) == 45
    assert doctor.line("x", bad).startswith("FAIL")
    assert doctor.line("x", bad).endswith("hint")


def test_every_check_ends_in_one_line_with_a_hint(tmp_path: Path) -> None:
    for name, look in checks.all_checks(tmp_path / "not" / "there").items():
        finding = look()
        assert "\n" not in doctor.line(name, finding)
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
    assert "with or without noise, to declared neighbours only" in checks.opinions(limits).text


@pytest.mark.skipif(bool(why_not()), reason="the doctor asks the network: it needs one of its own")
def test_doctor_json_is_one_object() -> None:
    with closing(Space()) as space:
        line = [*space.enter, sys.executable, "-m", "fedagent_cli", "doctor", "--json"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    record = json.loads(done.stdout)
    assert done.returncode == record["exit_code"]
    assert {check["check"] for check in record["checks"]} >= {"python", "mdns", "broker", "fsync"}


@pytest.mark.parametrize(
    ("role", "began_days", "state", "hint"),
    [
        ("agent", 0, "agent of site home, certificate until", ""),
        ("agent", -40, "certificate expired on", "start the role where it can reach"),
        ("agent", 5, "certificate not valid yet by this machine's clock", "timedatectl"),
        ("edge", -25, "edge of site home, certificate until", "renewal is overdue"),
    ],
)
def test_a_certificate_that_does_not_hold_is_explained(
    tmp_path: Path, role: Role, began_days: int, state: str, hint: str
) -> None:
    Members(tmp_path).member("kitchen", role, now=time.time() + began_days * 86_400)
    found = checks.certificates(tmp_path)
    assert (found.level is Level.OK) == (not hint)
    assert f"kitchen: {state}" in found.text or state in found.text
    assert hint in found.hint


def test_a_revoked_or_damaged_certificate_is_explained(tmp_path: Path) -> None:
    assert "no role" in checks.certificates(tmp_path).text
    members = Members(tmp_path)
    members.revoke("thief", members.member("thief", "agent"))
    found = checks.certificates(tmp_path)
    assert "thief: agent of site home, revoked" in found.text
    assert found.hint == JoinError("revoked").hint
    (tmp_path / "thief" / "site" / "cert.pem").write_text("nothing")
    assert "join again" in checks.certificates(tmp_path).hint
