"""A year of rounds: bytes per round, how fast it opens, and how fast its books are verified.

python -m bench.year --rounds 50000     # a tenth; --rounds 500000 is the year
python -m bench.year --folder DIR       # keep the rounds there, or measure those that are there
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import structs

from fedagent_coordinator.books.archive import ARCHIVE
from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.schema import DATABASE
from fedagent_coordinator.books.write import SNAPSHOT_EVERY, Books
from fedagent_coordinator.core.effects import HeldOutEvaluated
from fedagent_coordinator.store import CLOSE_ROUNDS
from fedagent_node.data_dir import hold_data_dir, load_or_create
from tests.fakes.rounds import random_view
from tests.fakes.stored_runs import begun, small_plan, small_result

from .rows import Row, Rows, show

DEVICES, EDGES, CHOSEN = 50, 4, 10
YEAR = 500_000
KEPT = 5000
"""As of `fedagent coordinator start --keep-rounds`."""


def year(rounds: int, folder: Path | None = None) -> Row:
    """Rounds of ten of fifty devices through the real store, without waiting for the disk."""
    if folder is not None:
        with hold_data_dir(folder):
            return _measured(rounds, folder)
    with tempfile.TemporaryDirectory() as name:
        return _measured(rounds, Path(name))


def _measured(rounds: int, folder: Path) -> Row:
    row: dict[str, object] = {}
    identity = load_or_create(folder)
    if not (folder / DATABASE).exists():
        began = time.perf_counter()
        with Books(folder, identity=identity) as store:
            store.connection.execute("PRAGMA synchronous = OFF")
            run = begun(store, total_micro=None, clients=DEVICES, edges=EDGES).run_id
            pauses = _write(store, run, rounds)
        row |= {"build_s": _since(began), "closing_s": round(float(np.median(pauses or 0)), 3)}
        row |= {"closing_max_s": round(max(pauses, default=0.0), 3)}
    with open_reader(folder) as reader:
        run = reader.run().run_id
        rounds = reader.progress(run).rounds_done
        tables = reader._db.execute(  # noqa: SLF001 - no query of a reader's
            "SELECT name, SUM(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT 8"
        ).fetchall()
    path = folder / ARCHIVE
    archive = path.stat().st_size if path.exists() else 0
    size = (folder / DATABASE).stat().st_size + archive
    row |= {"rounds": rounds, "gb": round(size / 1e9, 3), "archive_gb": round(archive / 1e9, 3)}
    row |= {"year_gb": round(size / rounds * YEAR / 1e9, 2)}
    row["bytes_of"] = {name: size // rounds for name, size in tables}
    row["open_s"] = _timed(lambda: Books(folder, identity=identity).close())
    with open_reader(folder) as reader:
        row["runs_s"] = _timed(reader.runs)
        row["rounds_s"] = _timed(partial(reader.rounds, run, last=20))
        row["progress_s"] = _timed(partial(reader.progress, run))
        row["devices_s"] = _timed(partial(reader.devices, run))
        for name, full in (("verify_s", False), ("verify_full_s", True)):
            began = time.perf_counter()
            row[f"{name[:-2]}_balanced"] = reader.ledger.verify(full=full).balanced
            row[name] = _since(began)
    return {"bench": "year", **row}


def _write(store: Books, run: str, rounds: int) -> list[float]:
    """Play, and close old rounds as a coordinator does; return how long that took."""
    chance = np.random.default_rng(0)
    made = []
    for _ in range(20):
        view = random_view(chance, 1, clients=DEVICES, edges=EDGES, budget=10**9)
        _, pairs = np.unique(view.pair_client, return_index=True)
        able = pairs[view.client_available[view.pair_client[pairs]]][:CHOSEN]
        plan = small_plan(view, able.tolist())
        made.append((plan, small_result(plan, set(view.pair_client[able].tolist()[1:]))))
    pauses = []
    for number in range(1, rounds + 1):
        plan, result = made[number % len(made)]
        view = replace(plan.view, round=number)
        feedback = replace(result.feedback, view=view)
        store.reserve(run, structs.replace(plan, round=number, view=view), policy="random")
        store.settle(run, structs.replace(result, round=number, feedback=feedback))
        store.save_model(run, number, f"{number:064d}", 40_000)
        store.save_metrics(
            run, HeldOutEvaluated(number, f"{number:064d}", {"accuracy": 0.5, "loss": 1.0})
        )
        if number % SNAPSHOT_EVERY == 0:
            store.snapshot(run, number, {"n": np.zeros(DEVICES)})
            began, few = time.perf_counter(), CLOSE_ROUNDS
            done = store.prune(run, keep_rounds=KEPT, least=few, most=few, by="bench")
            if done.rounds >= few:
                pauses.append(time.perf_counter() - began)
    return pauses


def rows() -> Rows:
    yield year(20_000)


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 2)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return _since(began)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=YEAR // 10)
    parser.add_argument("--folder", type=Path, help="keep the rounds here, or measure these")
    asked = parser.parse_args()
    show([year(asked.rounds, asked.folder)])
