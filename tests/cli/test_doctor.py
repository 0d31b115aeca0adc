"""What the doctor says."""

import asyncio
import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from fedagent_agent.availability import LimitsSettings
from fedagent_cli.doctor import checks, network
from fedagent_cli.doctor.checks import Finding, Level
from fedagent_cli.doctor.command import line
from fedagent_cli.doctor.lies import lies
from fedagent_cli.doctor.membership import membership
from fedagent_node.address import BrokerAddress
from fedagent_node.discovery.advert import Advert
from fedagent_node.errors import JoinError
from fedagent_node.site.enrolling import Waiting, ask
from tests.coordinator.test_join_service import serving
from tests.documents.machines import Space, why_not
from tests.fakes.coordinator_site import Site, recipe, toy_edges
from tests.fakes.site import Members, joined_at

ADVERT = Advert("coordinator", "aa", "default", BrokerAddress("10.0.0.1", 1), 1)


@pytest.mark.parametrize(
    ("places", "level"),
    [
        ({"lan": ""}, Level.OK),
        ({"lan": "", "other card": "Network is unreachable"}, Level.OK),
        ({"lan": "Connection refused", "other card": "Network is unreachable"}, Level.WARN),
    ],
)
def test_one_address_that_answers_is_enough(places: dict[str, str], level: Level) -> None:
    finding = network.judged({ADVERT: places})
    assert finding.level is level
    assert ("unreachable" in finding.text) is (level is Level.WARN)


def test_every_check_of_the_machine_ends_in_one_line_with_a_hint(tmp_path: Path) -> None:
    found = dict(checks.of_machine(tmp_path / "not" / "there", LimitsSettings()))
    assert {"python", "broker", "fsync", "load", "wifi"} <= found.keys()
    for name, finding in found.items():
        assert "\n" not in line(name, finding)
        assert finding.level is Level.OK or finding.hint


@pytest.mark.skipif(bool(why_not()), reason="the doctor asks the network: it needs one of its own")
@pytest.mark.nightly
def test_doctor_json_is_one_object() -> None:
    with closing(Space()) as space:
        words = [*space.enter, sys.executable, "-m", "fedagent_cli", "doctor", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    record = json.loads(done.stdout)
    assert done.returncode == record["exit_code"] in (0, 44)
    assert {check["check"] for check in record["checks"]} >= {"python", "mdns", "broker", "site"}


def test_a_revoked_or_damaged_certificate_is_explained(tmp_path: Path) -> None:
    assert f"no role in {tmp_path} belongs to a site" in membership(tmp_path).text
    members = Members(tmp_path)
    members.revoke("thief", members.member("thief", "agent"))
    found = membership(tmp_path)
    assert "thief: agent of site home, revoked" in found.text
    assert found.hint == JoinError("revoked").hint
    (tmp_path / "thief" / "site" / "cert.pem").write_text("nothing")
    assert "join again" in membership(tmp_path).hint


def test_the_doctor_asks_what_each_role_is_to_its_site(tmp_path: Path) -> None:
    async def look() -> Finding:
        return await asyncio.to_thread(membership, tmp_path)

    async def with_site() -> None:
        async with serving(tmp_path, now=time.time()) as made:
            device = made.invited("agent")
            admitted = await ask(made.place, device)
            assert not isinstance(admitted, Waiting)
            own = admitted.certificate
            joined_at(tmp_path / "agent", device.identity, own, admitted.ca_der, made.place)
            found = await look()
            assert found.level is Level.OK
            assert "confirmed by" in found.text
            assert "created here" in found.text
            made.now -= 8 * 86_400
            found = await look()
            assert (found.level, "clock 8.0 days ahead of" in found.text) == (Level.WARN, True)
            made.enrolment.revoke(device.identity.id, now=made.now)
            found = await look()
            assert (found.level, "revoked" in found.text) == (Level.FAIL, True)
            assert "ask for an invitation" in found.hint

    asyncio.run(with_site())
    found = membership(tmp_path)
    assert (found.level, "does not answer" in found.text) == (Level.WARN, True)


@pytest.mark.parametrize(
    ("edges", "sets", "level", "words"),
    [
        (2, "evaluation.dataset=none", "warn", "2 edges without held-out samples: nobody can tell"),
        (2, "rounds.count=1", "ok", "2 edges; a liar is left out"),
        (1, "rounds.count=1", "ok", "1 edge: the model is what it says"),
        (2, "aggregation.robust=none", "warn", "a liar makes the model anything"),
    ],
)
def test_what_a_lying_edge_could_do_is_said(
    tmp_path: Path, edges: int, sets: str, level: str, words: str
) -> None:
    assert lies(tmp_path) is None
    given = recipe("rounds.count=1", sets)
    site = Site(tmp_path / "coordinator", given, toy_edges(given, edges))
    site.run()
    site.close()
    found = lies(tmp_path)
    assert found is not None
    assert words in found.text
    assert found.level == level
