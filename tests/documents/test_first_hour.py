"""README and quickstart, typed as they stand, on machines with a network card."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedagent_protocol import SOFTWARE

from .machines import INSTALL_S, Machine, lan, why_not
from .pages import ROOT, Page

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

README, QUICKSTART = Page("README.md"), Page("docs/quickstart.md")
WHEEL, VENV, INSTALL = README.takes(
    "make wheel",
    "python3 -m venv fed && . fed/bin/activate",
    'pip install "$(ls dist/fedagent-*.whl)[edge,coordinator]"',
)
_, _, INSTALL_MORE, DOCTOR = QUICKSTART.takes(
    "make wheel",  # once for both pages
    "python3 -m venv fed && . fed/bin/activate",
    'pip install "$(ls dist/fedagent-*.whl)[edge,coordinator,report]"',
    "fedagent doctor",
)
THREE = (
    "fedagent coordinator start --recipe digits",
    "fedagent edge start --name hall",
    "fedagent start --name kitchen --stream digits",
)
README.takes(*THREE)
HERE = QUICKSTART.takes(*THREE)
READS = README.takes(
    "fedagent status",
    "fedagent status --rounds 20",
    "fedagent ledger verify",
    "fedagent report",
)
MORE_READS = QUICKSTART.takes(
    "fedagent status",
    "fedagent status --rounds 5",
    "fedagent devices",
    "fedagent ledger verify",
    "fedagent export --model digits.safetensors",
    "fedagent report",
)
SEVERAL = (
    "fedagent coordinator start --recipe digits --insecure --listen 0.0.0.0",
    "fedagent edge start --name hall --insecure --listen 0.0.0.0",
    "fedagent start --name kitchen --stream digits --insecure",
)
Page("docs/coordinator.md").takes(THREE[0])
README.skips("this is it", "make test")
DEMO, REPLAY, COMPARE = README.takes(
    "make demo",
    "fedagent replay fedagent-demo --policy cheapest --decisions",
    "fedagent testbed compare cocs-decisions --policies adaptive,cocs,cheapest --seeds 2"
    " --plot cocs.svg",
)
QUICKSTART.skips(
    "needs root and systemd; tests/cli/test_service.py",
    "sudo python3 -m venv /opt/fedagent"
    ' && sudo /opt/fedagent/bin/pip install "$(ls dist/fedagent-*.whl)"',
    "sudo /opt/fedagent/bin/fedagent service install agent",
)
PLAIN = QUICKSTART.takes(*SEVERAL)
JOINING = (
    "fedagent coordinator start --recipe digits --listen 0.0.0.0",
    "fedagent devices invite hall --role edge",
    "fedagent devices invite kitchen",
    "fedagent edge start --name hall --listen 0.0.0.0 --join STRING",
    "fedagent start --name kitchen --stream digits --join STRING",
)
README.takes(*JOINING)
SITE, INVITE_EDGE, INVITE_AGENT, EDGE_IN, AGENT_IN, PENDING, ACCEPT = QUICKSTART.takes(
    *JOINING, "fedagent devices", "fedagent devices accept K7QM-2XAF-4TDE"
)
COORDINATOR_AT, EDGE_AT, AGENT_AT = QUICKSTART.takes(
    "fedagent coordinator start --recipe digits --listen 0.0.0.0 --port 1884",
    "fedagent edge start --name hall --coordinator 192.168.1.10:1884 --listen 0.0.0.0"
    " --port 1883 --join STRING",
    "fedagent start --name kitchen --stream digits --edge 192.168.1.20:1883 --join STRING",
)
SHARED = QUICKSTART.takes(
    "fedagent coordinator start --recipe digits --broker mqtt://192.168.1.10:1883 --insecure",
    "fedagent edge start --name hall --broker mqtt://192.168.1.10:1883 --insecure",
    "fedagent start --name kitchen --stream digits --broker mqtt://192.168.1.10:1883 --insecure",
)
DEVICE_LINES = ("~/fed/bin/pip install fedagent-*.whl", "~/fed/bin/fedagent doctor")
JETSON, TERMUX = Page("docs/tutorials/jetson.md"), Page("docs/tutorials/termux.md")
INSTALL_DEVICE, DOCTOR_DEVICE = JETSON.takes(*DEVICE_LINES)
TERMUX.takes(*DEVICE_LINES)
JETSON.skips("needs another Python", "python3.12 -m venv ~/fed")
JETSON.skips(
    "needs a GPU",
    '~/fed/bin/python -c "import torch; print(torch.cuda.is_available(), '
    'torch.cuda.get_device_name())"',
)
JETSON.skips(
    "a package of hundreds of megabytes",
    "~/fed/bin/pip install torch-*.whl",
    '~/fed/bin/pip install "$(ls fedagent-*.whl)[torch]"',
)
JETSON.skips(
    "needs the board's own files or systemd",
    "~/fed/bin/fedagent start --name jetson --join STRING \\\n"
    "  --load-limit 5 --memory-limit 2000 --max-temperature 80 \\\n"
    "  --stream replay:/data/fashion/train-images-idx3-ubyte.gz,rate=50",
    "systemctl edit fedagent-agent",
)
(PHONE,) = TERMUX.takes(
    "~/fed/bin/fedagent start --name phone --edge 192.168.1.20:1883 --join STRING \\\n"
    "  --mains-only --metered no --load-limit 2 --memory-limit 300 \\\n"
    "  --stream digits:labels=3+7"
)
TERMUX.skips(
    "needs Android",
    "pkg update",
    "pkg install python python-numpy python-cryptography python-psutil termux-api",
    "pkg install rust binutils clang",
    "python -m venv --system-site-packages ~/fed",
    "termux-wake-lock",
    "termux-sensor -s accelerometer -d 200 | python to_csv.py >> ~/motion.csv &",
    "~/fed/bin/fedagent start --name phone --edge 192.168.1.20:1883 --join STRING \\\n"
    "  --stream csv:/data/data/com.termux/files/home/motion.csv,label=last",
)
BUSY = 75
OFFLINE = "NewConnectionError|NameResolutionError|Network is unreachable"
INTERRUPTED = {-signal.SIGINT, 2, 130}
"""What make ends with, by its version."""
HOSTS = ("192.168.1.10", "192.168.1.20", "192.168.1.30")


def clone(folder: Path) -> Path:
    """Return a copy of the project, as it stands now, without what was made in it."""
    made = ("*.egg-info", "__pycache__", "dist", "fedagent-demo", "fed")
    ignored = shutil.ignore_patterns(".*", *made)
    return Path(shutil.copytree(ROOT, folder / "fedagent", ignore=ignored))


def environment_as_set_up() -> Path:
    """Return the environment of these tests, if `make demo` would leave it as it is."""
    environment = Path(sys.prefix)
    stamp = environment / ".installed"
    project = (ROOT / "pyproject.toml").read_bytes()
    mark = subprocess.run(["cksum"], input=project, stdout=subprocess.PIPE, check=True).stdout
    if not stamp.exists() or "-".join(mark.decode().split()) not in stamp.read_text():
        pytest.skip("`make demo` would install into this environment: `make test` sets it up")
    return environment


def test_from_the_wheel_to_the_report_on_one_machine(tmp_path: Path) -> None:
    # Outside, because the package index is there.
    builder = Machine(None, tmp_path)
    builder.cwd = clone(tmp_path)
    builder.path = [Path(sys.base_prefix) / "bin"]
    installing = builder.opens("\n".join(["set -e", WHEEL, VENV, INSTALL, INSTALL_MORE]))
    if installing.ended(INSTALL_S) and re.search(OFFLINE, installing.shown):
        pytest.skip("the package index is not reachable")
    assert installing.ended() == 0, installing.shown
    (builder.home / "fed").symlink_to(builder.cwd / "fed")
    (wheel,) = (builder.cwd / "dist").glob("*.whl")
    builder.cwd = Path(shutil.copy(wheel, builder.home)).parent
    builder.types(INSTALL_DEVICE)
    with lan(tmp_path, "192.168.1.10") as (machine,):
        machine.cwd, machine.path = builder.home, [builder.home / "fed" / "bin"]
        coordinator, _, agent = [machine.opens(line) for line in HERE]
        doctor = machine.opens(DOCTOR)
        coordinator.until_round()
        # The process has become the role: nothing of the command line in a device's memory.
        assert agent.command[1:3] == ["-m", "fedagent_agent"]
        again = machine.opens(HERE[2])
        assert again.ended() == BUSY, again.shown
        again.until("kitchen.* is in use by process")
        machine.terminals.remove(again)
        machine.types(*READS, *MORE_READS)
        (kitchen,) = json.loads(machine.types("fedagent devices --json"))["devices"]
        assert (kitchen["label"], kitchen["software"], kitchen["reason"]) == (
            "kitchen",
            SOFTWARE,
            "",
        )
        assert kitchen["address"]
        assert kitchen["last_seen_ms"] is not None
        assert doctor.ended() in (0, 44), doctor.shown
        doctor.until("multicast to 224.0.0.251 works")
        machine.ends()


def test_the_demo_in_a_clone(tmp_path: Path) -> None:
    with lan(tmp_path, "192.168.1.10") as (machine,):
        machine.cwd, machine.path = clone(tmp_path), []
        # It has been set up already, as `make test` does.
        (machine.cwd / ".venv").symlink_to(environment_as_set_up())
        demo = machine.opens(DEMO)
        demo.until(r"round [1-9]/")
        demo.ctrl_c()
        assert demo.ended() in INTERRUPTED, demo.shown
        demo.until("ledger +balanced")
        machine.path = [machine.cwd / ".venv" / "bin"]
        assert "rounds decided by cheapest" in machine.types(REPLAY)


def test_policies_are_compared(tmp_path: Path) -> None:
    with lan(tmp_path, "192.168.1.10") as (machine,):
        assert "adaptive" in machine.types(COMPARE)
        assert (machine.cwd / "cocs.svg").exists()


@pytest.mark.parametrize("routed", [False, True])
def test_several_machines(tmp_path: Path, routed: bool) -> None:
    """By invitations; the second time where multicast does not reach."""
    first, edge, agent = (
        (COORDINATOR_AT, EDGE_AT, AGENT_AT) if routed else (SITE, EDGE_IN, AGENT_IN)
    )
    with lan(tmp_path, *HOSTS, routed=routed) as (one, two, three):
        coordinator = one.opens(first)
        coordinator.until("devices and edges join site default at 192.168.1.10:8871")
        strings = [one.types(line).strip() for line in (INVITE_EDGE, INVITE_AGENT)]
        two.opens(edge.replace("STRING", strings[0]))
        three.opens(agent.replace("STRING", strings[1])).until("joined site default")
        if routed:
            (three.home / "fed").symlink_to(Path(sys.prefix))
            string = one.types("fedagent devices invite phone").strip()
            phone = three.opens(PHONE.replace("STRING", string))
            phone.until("connected to mqtts://192.168.1.20:1883")
        coordinator.until_round()
        assert "joined, 30 days" in one.types("fedagent devices")
        for machine in (three, two, one):
            machine.ends()


def test_several_machines_by_codes(tmp_path: Path) -> None:
    """The device reaches the edge alone, and joins through it."""
    with lan(tmp_path, *HOSTS) as (one, two, three):
        three.cannot_reach(HOSTS[0])
        coordinator = one.opens(SITE)
        for machine, line in ((two, EDGE_IN), (three, AGENT_IN)):
            asking = machine.opens(line.removesuffix(" --join STRING"))
            code = asking.until(r"with code ([\w-]+)")[1]
            assert code in one.types(PENDING)
            one.types(ACCEPT.replace("K7QM-2XAF-4TDE", code))
            asking.until("joined site default")
        coordinator.until_round()
        for machine in (three, two, one):
            machine.ends()


def test_several_machines_in_the_clear(tmp_path: Path) -> None:
    with lan(tmp_path, *HOSTS) as machines:
        play(machines, PLAIN)


def test_one_broker_for_all(tmp_path: Path) -> None:
    with lan(tmp_path, *HOSTS) as machines:
        machines[0].has_broker("0.0.0.0")
        play(machines, SHARED)


def play(machines: list[Machine], lines: list[str]) -> None:
    """Type a line on each machine until a round is settled, then Ctrl-C everywhere."""
    coordinator, *_ = [machine.opens(line) for machine, line in zip(machines, lines, strict=True)]
    coordinator.until_round()
    for machine in reversed(machines):
        machine.ends()
