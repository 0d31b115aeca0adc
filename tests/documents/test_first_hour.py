"""What a newcomer types, as the pages have it, on machines with a network card."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from .machines import BROKER_PORT, INSTALL_S, Machine, lan, why_not

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
ROOT = Path(__file__).parents[2]
OFFLINE = "NewConnectionError|NameResolutionError|Network is unreachable"
BUSY = 75
HOSTS = ("192.168.1.10", "192.168.1.20", "192.168.1.30")


def lines_of(page: str, *lines: str) -> tuple[str, ...]:
    """Return lines that a page has, letter by letter."""
    text = (ROOT / page).read_text("utf-8")
    for line in lines:
        assert line in text, f"{page} has no line `{line}` (any more)"
    return lines


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page gives whole."""
    text = (ROOT / page).read_text("utf-8")
    return dict(re.findall(r"^```python file=(\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


INSTALL = lines_of(
    "docs/quickstart.md",
    "make wheel",
    "python3 -m venv fed && . fed/bin/activate",
    'pip install "$(ls dist/fedagent-*.whl)[edge,coordinator,plots]"',
)
THREE = lines_of(
    "README.md",
    "fedagent coordinator start --recipe digits",
    "fedagent edge start --name hall",
    "fedagent start --name kitchen --stream digits",
)
READS = lines_of(
    "docs/quickstart.md",
    "fedagent status",
    "fedagent status --rounds 5",
    "fedagent devices",
    "fedagent ledger verify",
    "fedagent export --model digits.safetensors",
    "fedagent report",
)
SITE, INVITE_EDGE, INVITE_AGENT, EDGE_IN, AGENT_IN = lines_of(
    "README.md",
    "fedagent coordinator start --recipe digits --listen 0.0.0.0",
    "fedagent devices invite hall --role edge",
    "fedagent devices invite kitchen",
    "fedagent edge start --name hall --listen 0.0.0.0 --join STRING",
    "fedagent start --name kitchen --stream digits --join STRING",
)
ROUTED = lines_of(
    "docs/quickstart.md",
    "fedagent coordinator start --recipe digits --listen 0.0.0.0 --port 1884",
    "fedagent edge start --name hall --coordinator 192.168.1.10:1884 --listen 0.0.0.0"
    " --port 1883 --join STRING",
    "fedagent start --name kitchen --stream digits --edge 192.168.1.20:1883 --join STRING",
)
TOPIC = (
    '--stream "mqtt://127.0.0.1:1883/home/boiler'
    '?features=outside:-40..60,pump:0..100&label=room:-40..60"'
)
SENSOR = lines_of(
    "docs/tutorials/sensor.md",
    "fedagent edge start --name home",
    f"fedagent start --name boiler --load-limit 1 {TOPIC}",
    "fedagent coordinator start --recipe sensor",
)
PREDICTS = lines_of(
    "docs/tutorials/sensor.md",
    "fedagent export --model room.safetensors",
    f"fedagent predict room.safetensors --count 5 {TOPIC}",
)
RUN, BUILD, COORDINATOR, EDGE, DEVICE, USE = lines_of(
    "docs/your-model.md",
    "python run.py",
    "fedagent task build my_model.py:build -o my_model.fedtask",
    "fedagent coordinator start --recipe my_model.fedtask --set data.scale=0.0625 "
    "--set rounds.count=5 --set evaluation.dataset=digits-test",
    "fedagent edge start",
    "fedagent start --stream digits",
    "python use.py",
)
SPEAKS = f"""
import json, random, time
from paho.mqtt import publish
while True:
    outside, pump = random.randint(-5, 24), random.choice((0, 50, 100))
    room = 17 + 0.15 * outside + 0.06 * pump
    said = json.dumps({{"outside": outside, "pump": pump, "room": room}})
    publish.single("home/boiler", said, port={BROKER_PORT})
    time.sleep(0.05)
"""


def clone(folder: Path) -> Path:
    """Return a copy of the project, as it stands now, without what was made in it."""
    made = ("*.egg-info", "__pycache__", "dist", "fedagent-demo", "fed")
    ignored = shutil.ignore_patterns(".*", *made)
    return Path(shutil.copytree(ROOT, folder / "fedagent", ignore=ignored))


def test_from_the_wheel_to_the_report_on_one_machine(tmp_path: Path) -> None:
    # Outside, because the package index is there.
    builder = Machine(None, tmp_path)
    builder.cwd = clone(tmp_path)
    builder.path = [Path(sys.base_prefix) / "bin"]
    installing = builder.opens("\n".join(["set -e", *INSTALL]))
    if installing.ended(INSTALL_S) and re.search(OFFLINE, installing.shown):
        pytest.skip("the package index is not reachable")
    assert installing.ended() == 0, installing.shown
    with lan(tmp_path, HOSTS[0]) as (machine,):
        machine.path = [builder.cwd / "fed" / "bin"]
        coordinator, _, agent = [machine.opens(line) for line in THREE]
        doctor = machine.opens("fedagent doctor")
        coordinator.until_round()
        # The process has become the role: nothing of the command line in a device's memory.
        assert agent.command[1:3] == ["-m", "fedagent_agent"]
        again = machine.opens(THREE[2])
        assert again.ended() == BUSY, again.shown
        again.until("kitchen.* is in use by process")
        machine.terminals.remove(again)
        machine.types(*READS)
        (kitchen,) = json.loads(machine.types("fedagent devices --json"))["devices"]
        assert (kitchen["name"], kitchen["reason"]) == ("kitchen", "")
        assert doctor.ended() in (0, 44), doctor.shown
        doctor.until("multicast to 224.0.0.251 works")
        machine.ends()


@pytest.mark.parametrize("routed", [False, True])
def test_several_machines(tmp_path: Path, routed: bool) -> None:
    """By invitations; the second time where multicast does not reach."""
    first, edge, agent = ROUTED if routed else (SITE, EDGE_IN, AGENT_IN)
    with lan(tmp_path, *HOSTS, routed=routed) as (one, two, three):
        coordinator = one.opens(first)
        coordinator.until("devices and edges join site default at 192.168.1.10:8871")
        strings = [one.types(line).strip() for line in (INVITE_EDGE, INVITE_AGENT)]
        two.opens(edge.replace("STRING", strings[0]))
        three.opens(agent.replace("STRING", strings[1])).until("joined site default")
        coordinator.until_round()
        assert "joined, 30 days" in one.types("fedagent devices")
        for machine in (three, two, one):
            machine.ends()


def test_from_a_topic_to_a_model(tmp_path: Path) -> None:
    with lan(tmp_path, HOSTS[0]) as (pi,):
        pi.has_broker("127.0.0.1")
        speaker = pi.runs("a sensor", SPEAKS)
        *_, coordinator = [pi.opens(line) for line in SENSOR]
        coordinator.until_round(2)  # one round may have few readings
        assert re.search(r"mae [\d.]+ on 5 samples", pi.types(*PREDICTS))
        speaker.kill()


def test_from_a_module_to_real_devices_and_back(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with lan(tmp_path, HOSTS[0]) as (machine,):
        for name, text in files_of("docs/your-model.md").items():
            (machine.cwd / name).write_text(text, encoding="utf-8")
        assert float(machine.types(RUN).rpartition("accuracy ")[2]) > 0.7
        machine.types(BUILD)
        coordinator, *others = [machine.opens(line) for line in (COORDINATOR, EDGE, DEVICE)]
        coordinator.until(r"end: .*rounds done 5")
        assert coordinator.ended() == 0
        assert float(machine.types(USE)) > 0.7
        for terminal in others:
            terminal.ctrl_c()
            assert terminal.ended() == 0
