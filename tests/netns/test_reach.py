"""Who finds whom between machines with network cards, and what people are told of the rest."""

import json
from pathlib import Path

import pytest

from tests.documents.machines import Terminal, lan, why_not

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

COORDINATOR = "fedagent coordinator start --recipe digits --insecure --listen 0.0.0.0"
NO_BROKER = 20


def own_id(coordinator: Terminal) -> str:
    return coordinator.until(r"ready: id ([0-9a-f]+)")[1]


def test_a_second_coordinator_is_named_at_both(tmp_path: Path) -> None:
    with lan(tmp_path, "192.168.1.10", "192.168.1.20") as (one, two):
        first, second = one.opens(COORDINATOR), two.opens(COORDINATOR)
        ids = own_id(first), own_id(second)
        first.until(
            rf"another coordinator runs at site default: {ids[1]}[0-9a-f]* at 192\.168\.1\.20:\d+;"
        )
        second.until(
            rf"another coordinator runs at site default: {ids[0]}[0-9a-f]* at 192\.168\.1\.10:\d+;"
        )
        assert f"another coordinator of this site, {ids[1]}" in one.types("fedagent status")
        (other,) = json.loads(two.types("fedagent status --json"))["other_coordinators"]
        assert other.startswith(ids[0])
        two.ends()
        first.until("this is again the only coordinator at site default")
        assert "another" not in one.types("fedagent status")


@pytest.mark.parametrize("listen", ["0.0.0.0", "192.168.1.10", "127.0.0.1"])
def test_roles_of_one_machine_find_each_other_wherever_the_brokers_listen(
    tmp_path: Path, listen: str
) -> None:
    with lan(tmp_path, "192.168.1.10") as (machine,):
        coordinator = machine.opens(
            f"fedagent coordinator start --recipe digits --insecure --listen {listen}"
        )
        machine.opens(f"fedagent edge start --insecure --listen {listen}")
        machine.opens("fedagent start --stream digits")  # nothing leaves the machine
        coordinator.until_round()


def test_where_a_broker_cannot_listen_is_said_with_the_hint(tmp_path: Path) -> None:
    with lan(tmp_path, "192.168.1.10") as (machine,):
        start = "fedagent edge start --insecure --port 1883"
        elsewhere = machine.opens(f"{start} --listen 192.168.9.9")
        assert elsewhere.ended() == NO_BROKER
        elsewhere.until("not an address of this machine; listen on 127.0.0.1, 192.168.1.10, or")
        first = machine.opens(f"{start} --listen 0.0.0.0")
        first.until(r"broker at 192\.168\.1\.10:1883")
        second = machine.opens(f"{start} --listen 0.0.0.0 --name second")
        assert second.ended() == NO_BROKER
        second.until("the port is in use; stop the program that uses it, or give another --port")


OVERHEARS = """
import socket, struct, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind(("", 5353))
group = socket.inet_aton("224.0.0.251") + socket.inet_aton("192.168.1.20")
sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
print("listens", flush=True)
while True:
    said = sock.recv(9000)
    if b"fedagent-edge" in said:
        print("heard:", said, flush=True)
"""


def test_who_is_on_loopback_alone_is_not_named_to_the_network(tmp_path: Path) -> None:
    with lan(tmp_path, "192.168.1.10", "192.168.1.20") as (machine, neighbour):
        overheard = neighbour.runs("a neighbour", OVERHEARS)
        overheard.until("listens")
        edge = machine.opens("fedagent edge start")
        ident = edge.until(r"([0-9a-f]{32}): edge ready")[1]
        agent = machine.opens("fedagent start --stream digits")
        agent.until("joined edge")
        overheard.until(r"(?s)(heard:.*){3}")
        assert ident not in overheard.shown


def test_an_address_that_went_away_is_said_in_one_line(tmp_path: Path) -> None:
    with lan(tmp_path, "192.168.1.10") as (machine,):
        edge = machine.opens("fedagent edge start --insecure --listen 192.168.1.10")
        edge.until("edge ready")
        machine.link("down")
        edge.until(
            "the broker listens on 192.168.1.10, which is no longer an address of this machine"
        )
        edge.until(r"no coordinator of site default is announced here; .* --coordinator HOST:PORT")
        assert "Traceback" not in edge.shown
