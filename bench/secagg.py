"""What secure aggregation costs a round: masked against plain, side by side, with dropouts.

One edge, N agents as processes, a model of 2.34 MB that is trained on a handful of samples.
Some agents leave in every round once they train: after their keys and shares, before their
update. Prints one JSON object per case, and their quotient.

    python -m bench.secagg --agents 20 --dropouts 3 --rounds 8
"""

import argparse
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedagent_testbed.local import Event, LocalField, RoleProcess

from .rows import show

FEATURES, CLASSES = 58_499, 10
BAR = 3.0
EVERY_S = 8.0
"""From round to round: who left is back by then."""
RECIPE = f"""
name = "bench-secagg"
seed = 1
[model]
kind = "softmax"
features = {FEATURES}
classes = {CLASSES}
[learner]
batch = 10
buffer = 10
passes = 4
rate = 0.01
[rounds]
deadline_s = 60.0
max_wait_s = 90.0
every_s = {EVERY_S}
[budget]
per_edge = 1000.0
[policy]
name = "all"
"""


def measure(
    folder: Path, *, mode: str, agents: int, dropouts: int, rounds: int, weighting: str, broker: str
) -> dict[str, object]:
    """Run one case and return its figures."""
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, FEATURES)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=rng.integers(0, CLASSES, size=200))
    sets = [f"rounds.count={rounds}", f"rounds.weighting={weighting}"]
    if mode == "masked":
        sets.append("secure_aggregation.minimum_cohort=5")
    fleeting = {f"agent-{i}" for i in range(dropouts)}
    stream = f"replay:{folder / 'data.npz'},start=20,rate=2"

    def back(process: RoleProcess) -> None:
        process.stop()
        field.agent(process.name, stream)

    def on_event(process: RoleProcess, event: Event) -> None:
        if process.name in fleeting and event.get("event") == "training":
            threading.Thread(target=back, args=(process,), daemon=True).start()

    with LocalField(folder, f"bench-{secrets.token_hex(4)}", on_event=on_event) as field:
        coordinator = field.coordinator(
            recipe, broker=broker, sets=sets, wait_edges=1, wait_agents=agents
        )
        field.edge("edge-1", broker=broker)
        for i in range(agents):
            field.agent(f"agent-{i}", stream)
        coordinator.wait("round", round=rounds, timeout_s=120 + 3 * EVERY_S * rounds)
        events = coordinator.all("round")[2:]
        fleeting.clear()
        time.sleep(3.0)
    seconds = sorted(float(str(event["seconds"])) for event in events)
    return {
        "bench": "secagg",
        "mode": mode,
        "weighting": weighting,
        "agents": agents,
        "dropouts": dropouts,
        "broker": broker,
        "rounds": len(seconds),
        "seconds_per_round": round(statistics.median(seconds), 4),
        "all": [round(one, 3) for one in seconds],
        "used": sorted({int(str(event["used"])) for event in events}),
        "state": sorted({str(event.get("state", "")) for event in events}),
    }


def rows(
    agents: int = 20,
    dropouts: int = 3,
    rounds: int = 8,
    broker: str = "mosquitto",
    weighting: str = "samples",
) -> Iterator[dict[str, object]]:
    """Yield a row per case, and how many times as long a masked round takes."""
    found: dict[str, float] = {}
    for mode in ("plain", "masked"):
        with tempfile.TemporaryDirectory(prefix="fedagent-bench-") as folder:
            row = measure(
                Path(folder),
                mode=mode,
                agents=agents,
                dropouts=dropouts,
                rounds=rounds,
                weighting=weighting,
                broker=broker,
            )
        found[mode] = float(str(row["seconds_per_round"]))
        yield row
    ratio = found["masked"] / found["plain"]
    yield {"bench": "secagg", "ratio": round(ratio, 3), "bar": BAR, "met": ratio <= BAR}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--dropouts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--broker", default="mosquitto")
    parser.add_argument("--weighting", choices=("samples", "uniform"), default="samples")
    show(rows(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
