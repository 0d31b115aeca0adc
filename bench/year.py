"""A year of rounds: bytes per round, how fast it opens, and what pruning leaves.

python -m bench.year --rounds 50000     # a tenth; --rounds 500000 is the year
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedagent_coordinator.database.connection import DATABASE
from fedagent_coordinator.reader import open_reader
from fedagent_coordinator.store import SNAPSHOT_EVERY, Store
from fedagent_node.data_dir import load_or_create
from tests.fakes.rounds import random_view
from tests.fakes.stored_runs import begun, play, small_plan

from .rows import Row, show

DEVICES, EDGES, CHOSEN = 50, 4, 10
YEAR = 500_000


def year(rounds: int) -> Row:
    """Rounds of ten of fifty devices through the real store, without waiting for the disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        identity = load_or_create(folder)
        began = time.perf_counter()
        with Store(folder, identity=identity) as store:
            store._db.connection.execute("PRAGMA synchronous = OFF")  # noqa: SLF001 - a year is written in hours
            run = begun(store, total_micro=None, clients=DEVICES, edges=EDGES).run_id
            _write(store, run, rounds)
        row: dict[str, object] = {"rounds": rounds, "build_s": _since(began)}
        size = (folder / DATABASE).stat().st_size
        row |= {"bytes_per_round": size // rounds, "year_gb": round(size / rounds * YEAR / 1e9, 2)}
        with open_reader(folder) as reader:
            tables = reader._db.execute(  # noqa: SLF001 - no query of a reader's
                "SELECT name, SUM(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT 8"
            ).fetchall()
        row["bytes_of"] = {name: size // rounds for name, size in tables}
        row["open_s"] = _timed(lambda: Store(folder, identity=identity).close())
        with open_reader(folder) as reader:
            row["runs_s"] = _timed(reader.runs)
            row["rounds_s"] = _timed(lambda: reader.rounds(run, last=20))
            row["progress_s"] = _timed(lambda: reader.progress(run))
            row["devices_s"] = _timed(lambda: reader.devices(run))
            row["verify_s"] = _timed(reader.ledger.verify)
        began = time.perf_counter()
        with Store(folder, identity=identity) as store:
            while store.prune(run, keep_rounds=rounds // 10, most=1000, by="bench").rounds:
                pass
            store.compact()
        row |= {"prune_s": _since(began)}
        row["pruned_bytes_per_round"] = (folder / DATABASE).stat().st_size // rounds
        with open_reader(folder) as reader:
            row["whole"] = reader.ledger.verify().balanced
        return {"bench": "year", **row}


def _write(store: Store, run: str, rounds: int) -> None:
    chance = np.random.default_rng(0)
    views = [random_view(chance, 1, clients=DEVICES, edges=EDGES, budget=10**9) for _ in range(20)]
    for number in range(1, rounds + 1):
        view = replace(views[number % len(views)], round=number)
        _, pairs = np.unique(view.pair_client, return_index=True)
        able = pairs[view.client_available[view.pair_client[pairs]]][:CHOSEN]
        clients = view.pair_client[able].tolist()
        play(store, run, small_plan(view, able.tolist()), set(clients[1:]))
        store.save_model(run, number, f"{number:064d}", 40_000)
        store.save_metrics(run, number, f"{number:064d}", {"accuracy": 0.5, "loss": 1.0})
        if number % SNAPSHOT_EVERY == 0:
            store.snapshot(run, number, "random", {"n": np.zeros(DEVICES)})


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 2)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return _since(began)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=YEAR // 10)
    show([year(parser.parse_args().rounds)])
