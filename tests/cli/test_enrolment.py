"""`fedagent devices invite`, `accept`, `revoke`, and `broker`: who belongs to the site."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedagent_cli import main
from fedagent_coordinator.errors import RefusedError
from fedagent_coordinator.site.enrolment import Enrolment, Member
from fedagent_coordinator.site.standing import open_site
from fedagent_node.data_dir import load_or_create
from fedagent_node.site.certificates import fingerprint
from fedagent_node.site.credentials import load_credentials
from fedagent_node.site.enrolling import Applicant, Waiting, ask
from fedagent_node.site.joining import Invitation, code_of
from fedagent_protocol.errors import FedagentError
from tests.coordinator.test_join_service import Field, serving
from tests.typed import fedagent

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("FEDAGENT_HOME", str(tmp_path))

    def typed(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedagent", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        assert ended.value.code == 0
        return capsys.readouterr().out

    return typed


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "coordinator"
    folder.mkdir()
    open_site(folder, "hall")
    with Enrolment(folder) as found:
        found.serves_at(("10.0.0.1:8871",))
    return folder


def problem(run: Run, *arguments: str) -> str:
    with pytest.raises(FedagentError) as caught:
        run(*arguments)
    return str(caught.value)


def test_an_invitation_says_all_that_a_device_needs(run: Run, home: Path) -> None:
    text = run("devices", "invite", "kitchen", "--address", "fed.example.org").strip()
    found = Invitation.parse(text)
    assert (found.site, found.role, found.name) == ("hall", "agent", "kitchen")
    assert found.places == ("fed.example.org", "10.0.0.1:8871")
    assert found.fingerprint.hex() == fingerprint(open_site(home, "hall").authority.der)
    told = json.loads(run("devices", "--json"))
    assert [one["name"] for one in told["invited"]] == ["kitchen"]
    other = json.loads(run("devices", "invite", "attic", "--address", "fed.example.org", "--json"))
    assert 0 <= other["expires"] - told["invited"][0]["expires"] < 60
    assert found.secret not in (home / "site.db").read_bytes(), "kept as a hash"


def test_at_a_terminal_there_is_a_code_to_scan(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = run("devices", "invite", "hall", "--role", "edge")
    assert "█" in shown or "▄" in shown
    assert "fedagent edge start --listen 0.0.0.0 --name hall --site hall --join fedagent:" in shown


def test_what_cannot_be_is_said_with_the_mend(run: Run, tmp_path: Path) -> None:
    assert "start the coordinator first" in problem(run, "devices", "invite", "kitchen")
    folder = tmp_path / "coordinator"
    folder.mkdir()
    open_site(folder, "hall")
    assert "add --address" in problem(run, "devices", "invite", "kitchen")
    assert "not a name" in problem(run, "devices", "invite", "", "--address", "a")
    assert "write HOST" in problem(run, "devices", "invite", "k", "--address", "a:b")
    assert "see `fedagent devices`" in problem(run, "devices", "accept", "K7QM-2XAF-4TDE")
    assert "no device or edge is waiting" in run("devices", "accept", "--all")
    assert "no device or edge belongs" in problem(run, "devices", "revoke", "kitchen")
    (folder / "site" / "ca.pem").write_text("what")
    assert "is not a certificate" in problem(run, "devices", "invite", "kitchen")


async def _waits(made: Field, device: Applicant) -> str:
    answer = await ask(made.place, device)
    assert isinstance(answer, Waiting)
    return code_of(answer.ca_der, device.identity.public_bytes)


def test_who_waits_is_accepted_by_code_alone_where_names_are_the_same(
    run: Run, tmp_path: Path
) -> None:
    async def wait() -> list[str]:
        async with serving(tmp_path, now=time.time()) as made:
            other = replace(made.device("other"), name="kitchen")
            return [await _waits(made, one) for one in (made.device("kitchen"), other)]

    codes = asyncio.run(wait())
    (tmp_path / "c").rename(tmp_path / "coordinator")
    assert "accepted agent kitchen" in run("devices", "accept", *codes[0].lower().split("-"))
    assert "is waiting with code KITC-HEN" in problem(run, "devices", "accept", "kitchen")
    told = json.loads(run("devices", "--json"))
    states = {one["enrolment"] for one in told["devices"]}
    assert states == {"accepted", f"waiting, code {codes[1]}"}


def test_all_are_accepted_but_who_has_left(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait() -> None:
        async with serving(tmp_path, now=time.time()) as made:
            for name in ("attic", "cellar", "kitchen"):
                await _waits(made, made.device(name))

    asyncio.run(wait())
    (tmp_path / "c").rename(tmp_path / "coordinator")
    read = Enrolment.members

    def read_before_one_left(self: Enrolment, *, now: float) -> list[Member]:
        codes = {"attic": "AAAA-AAAA-AAAA"}
        return [replace(one, code=codes.get(one.name, one.code)) for one in read(self, now=now)]

    monkeypatch.setattr(Enrolment, "members", read_before_one_left)
    told = json.loads(run("devices", "accept", "--all", "--json"))
    assert {one["name"] for one in told["accepted"]} == {"cellar", "kitchen"}


def test_who_joined_since_the_backup_is_revoked_by_the_whole_id(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "coordinator"
    site, late = open_site(folder, "hall"), load_or_create(tmp_path / "late")
    Enrolment(folder).close()
    own = load_or_create(folder).id
    for who in (late.id[:12], own):
        assert "no device or edge belongs" in problem(run, "devices", "revoke", who)
    assert f"revoked unknown {late.id[:12]}" in run("devices", "revoke", late.id)
    with Enrolment(folder) as enrolment:
        assert enrolment.revoked().ids == {late.id}
        assert (enrolment.revoked().number, enrolment.revoked().serials) == (1, frozenset())
        with pytest.raises(RefusedError, match="was revoked"):
            enrolment.admit(late.public_bytes, "agent", "late", now=1.0)
    assert site.credentials.certificate.id == own
    assert "no device or edge belongs" in problem(run, "devices", "revoke", late.id)


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
