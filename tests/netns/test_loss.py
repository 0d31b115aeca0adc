"""A device behind a bad radio: lost packets, and a link that takes no packet any more."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.documents.machines import Machine, lan, why_not

NFT = shutil.which("nft") or shutil.which("/usr/sbin/nft")
pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.skipif(NFT is None, reason="needs nft"),
]
BOX, DEVICE = "192.168.1.10", "192.168.1.20"
RECIPE = Path(__file__).parents[2] / "bench" / "wire.toml"
COORDINATOR = (
    f"fedagent coordinator start --recipe {RECIPE} --listen 127.0.0.1 --wait-agents 2 --json"
    " --set model.features=19999 --set model.classes=10 --set rounds.count=5"
)
"""A model of 800 KB, down and up again."""
EDGE = "fedagent edge start --insecure --listen 0.0.0.0 --port 1884"
NEAR = "fedagent start --stream digits:rate=1 --edge 127.0.0.1:1884 --discovery off"
FAR = (
    f"fedagent start --name far --stream digits:rate=1 --edge {BOX}:1884 --insecure"
    " --discovery off --data-dir far"
)


def lose(machine: Machine, what: str) -> None:
    """Drop packets, on their way in and out."""
    rules = "".join(
        f"chain {name} {{ type filter hook {name} priority 0; {name[0]}ifname e0 {what} drop; }}\n"
        for name in ("input", "output")
    )
    table = f"flush ruleset\ntable inet loss {{\n{rules}}}\n"
    subprocess.run([*machine._enter, str(NFT), "-f", "-"], input=table, text=True, check=True)


def rounds_of(shown: str) -> list[dict[str, object]]:
    events = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    return [event for event in events if event.get("event") == "round"]


def test_a_link_that_takes_no_packet_is_noticed_and_left(tmp_path: Path) -> None:
    """Half-open: the established flow is dropped without a word, new ones are not."""
    with lan(tmp_path, BOX, DEVICE) as (box, device):
        endless = "--set rounds.count=0 --set rounds.deadline_s=3"
        coordinator = box.opens(f"{COORDINATOR} {endless}")
        box.opens(EDGE).until("edge ready")
        box.opens(NEAR)
        far = device.opens(FAR)
        coordinator.until('"used":2')
        port = far.until(r"joined edge")  # it is at work
        assert port
        lose(device, "tcp sport != 1883 tcp dport != 1883 ct mark 0 ct state established")
        began = time.monotonic()
        far.until("no message arrives on .*, reconnecting")
        assert time.monotonic() - began < 30.0, "twice the keep-alive"
        device_rules = [*device._enter, str(NFT), "flush", "ruleset"]
        subprocess.run(device_rules, check=True)
        already = len(rounds_of(coordinator.shown))
        deadline = time.monotonic() + 30
        while not any(e["used"] == 2 for e in rounds_of(coordinator.shown)[already:]):
            assert time.monotonic() < deadline, coordinator.shown
            time.sleep(0.2)
