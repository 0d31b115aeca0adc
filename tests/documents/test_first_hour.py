"""README and quickstart, typed as they stand, on machines with a network card."""

import shutil
import sys
from pathlib import Path

import pytest

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
    "fedagent rounds",
    "fedagent ledger verify",
    "fedagent report",
)
MORE_READS = QUICKSTART.takes(
    "fedagent status",
    "fedagent rounds --last 5",
    "fedagent devices",
    "fedagent ledger verify",
    "fedagent models export --out digits.safetensors",
    "fedagent report",
)
SEVERAL = (
    "fedagent coordinator start --recipe digits --insecure --listen 0.0.0.0",
    "fedagent edge start --name hall --insecure --listen 0.0.0.0",
    "fedagent start --name kitchen --stream digits --insecure",
)
README.takes(*SEVERAL)
Page("docs/coordinator.md").takes(THREE[0])
README.skips("this is it", "make test")
README.skips("tests/e2e/test_demo.py", "make demo")
README.skips(
    "a minute of two cores; tests/e2e/test_cli_testbed.py",
    "fedagent testbed compare cocs-decisions --policies all --seeds 5 --plot all.svg",
)
QUICKSTART.skips(
    "needs root and systemd; tests/cli/test_service.py",
    "sudo python3 -m venv /opt/fedagent"
    ' && sudo /opt/fedagent/bin/pip install "$(ls dist/fedagent-*.whl)"',
    "sudo /opt/fedagent/bin/fedagent service install agent",
)
ACROSS = QUICKSTART.takes(*SEVERAL)
COORDINATOR_AT, EDGE_AT, AGENT_AT = QUICKSTART.takes(
    "fedagent coordinator start --recipe digits --insecure --listen 0.0.0.0 --port 1884",
    "fedagent edge start --name hall --coordinator 192.168.1.10:1884 --insecure --listen 0.0.0.0"
    " --port 1883",
    "fedagent start --name kitchen --stream digits --edge 192.168.1.20:1883 --insecure",
)
SHARED = QUICKSTART.takes(
    "fedagent coordinator start --recipe digits --broker mqtt://192.168.1.10:1883 --insecure",
    "fedagent edge start --name hall --broker mqtt://192.168.1.10:1883 --insecure",
    "fedagent start --name kitchen --stream digits --broker mqtt://192.168.1.10:1883 --insecure",
)
HOSTS = ("192.168.1.10", "192.168.1.20", "192.168.1.30")


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
    builder.types(WHEEL, VENV, INSTALL, INSTALL_MORE, patience_s=INSTALL_S)
    with lan(tmp_path, "192.168.1.10") as (machine,):
        machine.cwd, machine.path = builder.cwd, [builder.cwd / "fed" / "bin"]
        coordinator, *_ = [machine.opens(line) for line in HERE]
        doctor = machine.opens(DOCTOR)
        coordinator.until_round()
        machine.types(*READS, *MORE_READS)
        assert doctor.ended() in (0, 44), doctor.shown
        doctor.until("multicast to 224.0.0.251 works")
        machine.ends()


def test_several_machines(tmp_path: Path) -> None:
    with lan(tmp_path, *HOSTS) as machines:
        play(machines, ACROSS)


def test_several_machines_where_multicast_does_not_reach(tmp_path: Path) -> None:
    with lan(tmp_path, *HOSTS, routed=True) as machines:
        play(machines, [COORDINATOR_AT, EDGE_AT, AGENT_AT])


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
