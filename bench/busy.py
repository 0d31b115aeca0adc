"""Record demos on a busy machine, from which the testbed makes a world (docs/testbed.md).

python -m bench.busy --work FOLDER --seeds 10   # one demo each; those that are there are kept
python -m bench.busy --work FOLDER --write      # all that are there, as one file

Every device is ordered in every round (policy `all`, with money for all), so that it is known
how each would have ended. A device has the features of its pair with the first edge that it
sees, with two digits. The file has of each run

- `ending`: by round, one character for each device: its `Ending`, a dot where it was not ordered;
- `tau_ms`, `dt_ms`, `lc_ms`: by round and device, null where nothing is known; what is left of tau
  is the upload, and before the first training the start of the trainer;
- `features`: by name and device, `round, value, round, value, ...` whenever the value changed; null
  is not reported.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.policies import Feedback

from .fleet import RECIPE, busy, machine_load, run_demo
from .rows import ROOT, Row, show

OUT = ROOT / "deploy" / "testbed" / "fedagent_testbed" / "worlds" / "busy-demo.json"
STAGES = ("tau_s", "dt_s", "lc_s")
NOBODY = -1
"""Instead of an ending: the device was not there, or had just declined or fallen silent."""
DIGITS = 2

Changes = list[float | int | None]


def recorded(folder: Path) -> Row:
    """Return a run as the file has it."""
    with open_reader(folder / "coordinator") as read:
        run = read.run().run_id
        names = [row.label for row in read.devices(run)]
        rounds = list(read.learnt(run))
    order = np.argsort(names)
    features = sorted({name for one in rounds for name in one.view.feature_names})
    table = {name: [_feature(one, name, order) for one in rounds] for name in features}
    ended = [_ended(one, order) for one in rounds]
    first = rounds[0].view
    return {
        "price_micro": first.client_price[order].tolist(),
        "model_bytes": first.model_bytes,
        "features": {
            name: [_changes(column) for column in zip(*rows, strict=True)]
            for name, rows in table.items()
        },
        "ending": ["".join("." if e == NOBODY else str(e) for e in row[0]) for row in ended],
        **{
            stage.replace("_s", "_ms"): [row[1 + i] for row in ended]
            for i, stage in enumerate(STAGES)
        },
    }


def _feature(feedback: Feedback, name: str, order: npt.NDArray[np.int64]) -> list[float]:
    """Return a feature of every device in a round, NaN where it reported none."""
    view = feedback.view
    found = np.full(len(view.client_price), np.nan)
    if name in view.feature_names:
        column = view.pair_features[:, view.feature_names.index(name)].astype(np.float64)
        rows = np.argsort(-view.pair_edge, kind="stable")  # the first edge is written last
        found[view.pair_client[rows]] = column[rows]
    padded = np.full(len(order), np.nan)
    padded[: len(found)] = found
    return [float(f"{value:.{DIGITS}g}") for value in padded[order].tolist()]


def _ended(feedback: Feedback, order: npt.NDArray[np.int64]) -> list[list[int | None]]:
    """Return endings and stages of every device in a round."""
    size = len(order)
    clients = feedback.view.pair_client[feedback.pairs]
    ending = np.full(size, NOBODY, dtype=np.int64)
    ending[clients] = feedback.endings
    columns = [ending[order].tolist()]
    for stage in STAGES:
        seconds = np.full(size, np.nan)
        seconds[clients] = getattr(feedback, stage)
        columns.append([None if np.isnan(s) else round(1000 * s) for s in seconds[order].tolist()])
    return columns


def _changes(column: tuple[float, ...]) -> Changes:
    """Return round and value, flat, where a value differs from the round before."""
    last: float | int | None = None
    changes: Changes = []
    for number, found in enumerate(column, 1):
        value = None if np.isnan(found) else _short(found)
        if value != last:
            changes += [number, value]
        last = value
    return changes


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else value


def demo(work: Path, seed: int, loops: int) -> Row:
    """Run one demo with every device in every round, and keep what came of it."""
    work.mkdir(parents=True, exist_ok=True)
    recipe = work / "all.toml"
    recipe.write_text(RECIPE.read_text(encoding="utf-8").replace("per_edge = 3.3", "per_edge = 99"))
    folder, before = work / f"demo-{seed}", machine_load()
    with busy(loops):
        said = run_demo(folder, recipe=str(recipe), policy="all", seed=seed)
        load = [round(before, 1), round(machine_load(), 1)]
    row: Row = {"seed": seed, "busy": loops, "load": load, "accuracy": said["accuracy"]}
    row |= recorded(folder)
    shutil.rmtree(folder)
    (work / f"{seed}.json").write_text(json.dumps(row))
    return {"bench": "busy", "seed": seed, "load": load, "accuracy": said["accuracy"]}


def written(work: Path, out: Path) -> Row:
    """Write all that was recorded as one file."""
    paths = sorted(work.glob("[0-9]*.json"), key=lambda path: int(path.stem))
    runs: list[dict[str, Any]] = [json.loads(path.read_text()) for path in paths]
    whole = {"deadline_s": 1.0, "max_wait_s": 3.0, "devices": 8, "runs": runs}
    lines = json.dumps(whole, separators=(",", ":")).replace('{"seed"', '\n{"seed"')
    out.write_text(lines + "\n", encoding="utf-8")
    return {"bench": "busy", "runs": len(runs), "bytes": out.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--busy", type=int, default=2, help="busy processes beside the demo")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    todo = [s for s in range(chosen.seeds) if not (chosen.work / f"{s}.json").exists()]
    show(demo(chosen.work, seed, chosen.busy) for seed in todo)
    if chosen.write:
        show([written(chosen.work, chosen.out)])


if __name__ == "__main__":
    main()
