"""Real trainers in virtual time: what devices learn, and say of it, down to the books."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.read import open_reader

from . import World

Make = Callable[..., World]
DIGITS = ("digits:rate=200",) * 3
MLP = (
    'model={kind="mlp", hidden=[16], features=64, classes=10}',
    "data={scale=0.125, offset=-0.6}",
    "learner={rate=0.2, batch=50, passes=8}",
    'evaluation={on_device=true, dataset="digits-test"}',
    *("rounds.count=5", "rounds.merge_every=1"),
)


def test_a_network_learns_and_every_round_has_the_devices_score(world: Make) -> None:
    played = world(sets=MLP).learn(*DIGITS).run(checked=False)
    assert (played.ending.rounds_done, played.ending.balanced) == (5, True)
    with open_reader(played.here.coordinator.directory) as read:
        run = read.run().run_id
        rows = [row.metrics for row in read.rounds(run)]
        arrivals = [
            sum(o.arrivals for o in read.outcomes(run, t) if o.in_time) for t in range(1, 6)
        ]
    scores = [row["device_score"] for row in rows]
    assert scores[0] < 0.4
    assert scores[-1] > 0.8
    assert [row["device_samples"] for row in rows] == arrivals
    # What the devices say of a model and what the coordinator measured of it agree.
    for before, score in zip(rows, scores[1:], strict=False):
        assert score == pytest.approx(before["accuracy"], abs=0.12)


def test_a_network_learns_and_its_clients_say_so(world: Make) -> None:
    sets = (*MLP, "policy.name=quick-init-ucb", "policy.params.clients_per_round=2")
    played = world(sets=sets).learn(*DIGITS).run(checked=False)
    with open_reader(played.here.coordinator.directory) as read:
        run = read.run().run_id
        accuracy = {row.round: row.metrics["accuracy"] for row in read.rounds(run)}
        evaluated = read.evaluations.rows(run)
    assert [(one.round, one.answered) for one in evaluated] == [(t, 3) for t in range(6)]
    means = [one.mean or 0.0 for one in evaluated]
    assert means[0] < 0.4
    assert means[-1] > 0.7
    for one, mean in zip(evaluated[1:], means[1:], strict=True):
        assert mean == pytest.approx(accuracy[one.round], abs=0.15)


# --------------------------------------------------------------------- mixed units

SENSORS = {
    "pressure_pa": (101_325, 500),
    "light_lux": (50_000, 15_000),
    "temperature_c": (20, 5),
    "vibration_m": (2e-3, 5e-4),
    "dose_sv_h": (1.2e-7, 2e-8),
    "flow_m3_s": (1e-4, 2e-5),
}


def samples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x [count, 6] in the sensors' units, and y [count]."""
    rng = np.random.default_rng(seed)
    weight = np.random.default_rng(0).normal(size=(len(SENSORS), 3))
    z = rng.normal(size=(count, len(SENSORS))).clip(-3, 3)
    y = (z @ weight + 0.3 * rng.normal(size=(count, 3))).argmax(axis=1)
    mean, deviation = np.array(list(SENSORS.values())).T
    return mean + deviation * z, y


def stream(folder: Path, number: int) -> str:
    """Write a file of a device, and return its stream: of two kinds."""
    x, y = samples(1000, number)
    if number % 2:
        np.savez(folder / f"{number}.npz", x=x, y=y)
        return f"replay:{folder / f'{number}.npz'},rate=200,start=200"
    rows = (",".join([*map(repr, row), str(k)]) for row, k in zip(x.tolist(), y, strict=True))
    (folder / f"{number}.csv").write_text("\n".join([",".join([*SENSORS, "state"]), *rows]) + "\n")
    return f"csv:{folder / f'{number}.csv'}"


def test_mixed_units_are_learnt_when_standardized(world: Make, tmp_path: Path) -> None:
    x, y = samples(2000, 9)
    np.savez(tmp_path / "test.npz", x=x, y=y)
    features = ", ".join(f'{{name="{name}"}}' for name in SENSORS)
    sets = (
        f'model={{kind="softmax", features={len(SENSORS)}, classes=3}}',
        f"data={{standardize=true, features=[{features}]}}",
        "learner={rate=0.3, batch=50, passes=10}",
        "limits.norm=0",
        f'evaluation.dataset="{tmp_path / "test.npz"}"',
        "rounds.count=8",
    )
    here = world(sets=sets).learn(*(stream(tmp_path, number) for number in range(3)))
    played = here.run(checked=False)
    with open_reader(played.here.coordinator.directory) as read:
        run = read.run().run_id
        accuracy = read.rounds(run)[-1].metrics["accuracy"]
        reasons = {row.last_reason for row in read.devices(run)}
    assert accuracy > 0.88
    assert not any("out of proportion" in reason for reason in reasons)
