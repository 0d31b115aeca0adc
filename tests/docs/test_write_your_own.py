"""The package of `write-your-own.md`, installed as a distribution and run."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedagent_agent.core.device import DeviceState, LinkQuality, PriceSettings, Radio, Readings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "policies" / "write-your-own.md").read_text(encoding="utf-8")
AGGREGATION = (ROOT / "docs" / "aggregation.md").read_text(encoding="utf-8")
LINES = 24


def blocks(fence: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{re.escape(fence)}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def files(page: str = PAGE) -> dict[str, str]:
    found = re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(found) == 2
    return dict(found)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what pip would unpack: the module, and a dist-info."""
    return unpacked(tmp_path_factory.mktemp("site"), PAGE)


def unpacked(folder: Path, page: str) -> Path:
    return as_installed(folder, files(page))


def as_installed(folder: Path, package: dict[str, str]) -> Path:
    """Lay down the files of a package, and beside them what pip would write."""
    for name, text in package.items():
        (folder / name).write_text(text, encoding="utf-8")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = folder / f"{stem}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        encoding="utf-8",
    )
    lines = []
    for group, names in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def run(installed: Path, *arguments: str) -> str:
    """Run Python where the package is installed; return what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "200"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_as_short_as_it_says() -> None:
    code = files()["thrifty.py"]
    written = [line for line in code.splitlines() if line.strip()]
    assert len(written) <= LINES


def test_it_lists_every_feature_that_agents_report() -> None:
    device = DeviceState(
        PriceSettings(),
        Readings(
            battery=0.5,
            temperature_c=40.0,
            radio=Radio(interface="wlan0", signal_dbm=-50.0, link_bps=6e6, bandwidth_hz=2e7),
        ),
        seconds_per_iteration=0.1,
        arrivals_per_s=1.0,
        arrivals_per_step=1.0,
        load_limit_s=1.0,
        position=(1.0, 2.0),
    )
    link = LinkQuality(download_bps=1.0, upload_bps=1.0, rtt_s=0.1, position=(0.0, 0.0))
    listed = PAGE.partition("Agents report ")[2].partition(", each where")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(
        device.context_report(link, run="r", seq=1).features
    )


def test_the_registry_finds_it_by_its_entry_point(installed: Path) -> None:
    code = "from fedagent_coordinator import policies as p; print(p.parameters('thrifty'))"
    assert run(installed, "-c", code) == "{'prior': 1.0}\n"


def test_the_comparison_in_python_runs_and_it_learns(installed: Path) -> None:
    (block,) = blocks("python run")
    printed = run(installed, "-c", block)
    utility = {name: float(mean) for name, mean in map(str.split, printed.splitlines())}
    assert set(utility) == {"thrifty", "cheapest", "random"}
    assert utility["thrifty"] > utility["random"]


def test_the_command_runs(installed: Path) -> None:
    command = shlex.split(blocks("sh")[0])
    assert command[0] == "fedagent"
    small = ["--seeds", "1", "--jobs", "1", "--set", "rounds.count=30"]
    printed = run(installed, "-m", "fedagent_cli", *command[1:], *small)
    assert "thrifty" in printed


def test_it_passes_the_rules_of_every_policy(installed: Path) -> None:
    assert "`pytest tests/checks -k thrifty`" in PAGE
    printed = run(
        installed, "-m", "pytest", "-q", "tests/checks", "-k", "thrifty", "-p", "no:xdist"
    )
    assert re.search(r"\b\d\d passed", printed), printed


def test_the_strategy_of_the_page_runs_in_a_study_and_at_an_edge(tmp_path: Path) -> None:
    site = unpacked(tmp_path, AGGREGATION)
    (block,) = blocks("python run", AGGREGATION)
    printed = run(site, "-c", block)
    reached = {name: float(accuracy) for name, accuracy in map(str.split, printed.splitlines())}
    assert reached.keys() == {"fedavg", "clipped"}
    assert reached["fedavg"] != reached["clipped"]
    code = """
from fedagent_edge.core.weighing import weighing_of
from fedagent_protocol import messages as m
from fedagent_task.recipe.text import task_bytes
from fedagent_task.recipe.spec import AggregationSpec, ModelSpec, TaskSpec
model = ModelSpec(kind="softmax", features=2, classes=2)
task = TaskSpec(model=model, aggregation=AggregationSpec(name="clipped", params={"longest": 2.0}))
weighing, stats = weighing_of(task_bytes(task)), m.TrainStats(num_samples=10)
told = weighing.told(stats, m.Assignment(agent="a"), norm=8.0, uniform=False)
print(weighing.weigh(told).coefficient)
"""
    assert run(site, "-c", code) == "2.5\n"
