"""Twelve sensors of mixed units on three devices: learnt when standardized, a warning when not."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_node.address import BrokerAddress
from fedagent_node.link import Link
from fedagent_testbed.local import RoleProcess
from tests.typed import fedagent

from .listener import Background
from .support import NEEDS_PASSWORDS, check_books, guarded, new_field

pytestmark = NEEDS_PASSWORDS
SENSORS = {
    "pressure_pa": (101_325, 500), "light_lux": (50_000, 15_000), "temperature_c": (20, 5),
    "humidity_percent": (50, 10), "co2_ppm": (600, 120), "mains_v": (230, 4),
    "current_a": (2, 0.5), "wind_m_s": (5, 1.2), "vibration_m": (2e-3, 5e-4),
    "dose_sv_h": (1.2e-7, 2e-8), "ph": (7, 0.3), "flow_m3_s": (1e-4, 2e-5),
}  # fmt: skip
NAMES = tuple(SENSORS)
CLASSES = 3
RECIPE = f"""
name = "units"
seed = 3
[model]
kind = "softmax"
features = {len(SENSORS)}
classes = {CLASSES}
[data]
dtype = "float64"
standardize = true
features = [{", ".join(f'{{name = "{name}"}}' for name in NAMES)}]
[learner]
rate = 0.3
batch = 50
passes = 10
[limits]
norm = 0
[rounds]
count = 8
deadline_s = 10.0
[budget]
per_edge = 10.0
[evaluation]
dataset = "PATH"
"""


def samples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x [count, 12] in the sensors' units, and y [count]."""
    rng = np.random.default_rng(seed)
    weight = np.random.default_rng(0).normal(size=(len(SENSORS), CLASSES))
    z = rng.normal(size=(count, len(SENSORS))).clip(-3, 3)
    y = (z @ weight + 0.3 * rng.normal(size=(count, CLASSES))).argmax(axis=1)
    mean, deviation = np.array(list(SENSORS.values())).T
    return mean + deviation * z, y


def write_csv(path: Path, count: int, seed: int) -> Path:
    x, y = samples(count, seed)
    rows = [
        ",".join([*map(repr, row), str(label)]) for row, label in zip(x.tolist(), y, strict=True)
    ]
    path.write_text("\n".join([",".join([*NAMES, "state"]), *rows]) + "\n")
    return path


def write_npz(path: Path, count: int, seed: int) -> Path:
    x, y = samples(count, seed)
    np.savez(path, x=x, y=y)
    return path


@contextmanager
def speaking(url: str) -> Iterator[None]:
    """Let sensors speak fifty times a second."""
    background, (x, y) = Background(), samples(2000, 3)
    link = Link(
        BrokerAddress.parse(url),
        client_id="sensor",
        on_arrivals=lambda _: None,
        on_state=lambda _: None,
    )

    async def speak() -> None:
        for i in itertools.cycle(range(len(y))):
            said = dict(zip(NAMES, x[i].tolist(), strict=True)) | {"state": int(y[i])}
            link.publish("plant/state", json.dumps(said).encode())
            await asyncio.sleep(0.02)

    background.run(link.start())
    speaks = asyncio.run_coroutine_threadsafe(speak(), background.loop)
    try:
        yield
    finally:
        speaks.cancel()
        background.run(link.stop())
        background.close()


def check_predictions(folder: Path, coordinator: RoleProcess) -> None:
    """Assert that the exported model says of raw sensors what the coordinator found."""
    place = ("--data-dir", str(coordinator.config["data_dir"]))
    model, new = folder / "m.safetensors", write_csv(folder / "new.csv", 500, 5)
    for arguments in (
        ("export", *place, "--model", str(model)),
        ("predict", str(model), "--stream", f"csv:{new}", "--json"),
    ):
        done = fedagent(*arguments)
        assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["count"], said["labelled"]) == (500, 500)
    assert said["accuracy"] >= 0.92


def check_warnings(coordinator: RoleProcess, logs: list[str]) -> None:
    """Assert that devices and the operator are told which features, and what to do."""
    for log in logs:
        assert "features out of proportion after scaling: pressure_pa (size 1e+05" in log
        assert "set data.standardize = true" in log
    said = [str(event["reason"]) for event in coordinator.all("warning")]
    assert said
    assert all(text.startswith("out of proportion: pressure_pa, light_lux") for text in said)
    with open_reader(Path(str(coordinator.config["data_dir"]))) as read:
        devices = read.devices(read.run().run_id)
    assert any(row.last_reason in said for row in devices)


@pytest.mark.parametrize("standardize", [True, False])
def test_three_kinds_of_streams(tmp_path: Path, standardize: bool) -> None:
    recipe = tmp_path / "units.toml"
    recipe.write_text(RECIPE.replace("PATH", str(write_npz(tmp_path / "test.npz", 2000, 9))))
    # Without a pre-round a topic needs a while until it has spoken.
    plain = ("data.standardize=false", "rounds.count=3", "learner.steps=2", "learner.step_s=1.0")
    sets = () if standardize else plain
    csv, npz = write_csv(tmp_path / "a.csv", 1000, 1), write_npz(tmp_path / "b.npz", 1000, 2)
    topic = f"plant/state?features={','.join(NAMES)}&label=state"
    plant = guarded(tmp_path / "broker", "plant", "s3cret")
    with (
        plant as port,
        speaking(url := f"mqtt://plant:s3cret@127.0.0.1:{port}"),
        new_field(tmp_path) as field,
    ):
        coordinator = field.coordinator(recipe, wait_agents=3, sets=sets)
        field.edge("edge")
        streams = (f"csv:{csv}", f"replay:{npz},rate=200,start=200", f"{url}/{topic}")
        agents = [field.agent(f"agent-{i}", stream) for i, stream in enumerate(streams)]
        end = coordinator.wait("end", timeout_s=120)
        assert coordinator.wait_exit() == 0
        logs = [agent.log.read_text() for agent in agents]
    accuracy = float(str(end["accuracy"]))
    if standardize:
        (told,) = coordinator.all("standardized")
        assert (told["features"], told["agents"]) == (12, 3)
        assert accuracy >= 0.93
        check_predictions(tmp_path, coordinator)
    else:
        assert not coordinator.all("standardized")
        assert accuracy < 0.6
        check_warnings(coordinator, logs)
    check_books(coordinator)
