"""The ledger: settles a second, and a start on a million entries.

python -m bench.ledger                  # cost and start
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.policies import RoundView
from fedagent_node.data_dir import Identity, load_or_create
from tests.fakes.stored_runs import begun, play, small_plan, small_view

from .rows import Row, Rows, show

CLIENTS = 500
MILLION = 1_000_000


def cost() -> Row:
    """Rounds of ten clients, reserved and settled, with a key and without."""
    row: dict[str, object] = {"clients": 10}
    for name in ("plain", "signed"):
        with tempfile.TemporaryDirectory() as folder:
            identity = load_or_create(Path(folder)) if name == "signed" else None
            row[f"{name}_settles_per_s"] = round(_settles_per_s(Path(folder), identity))
    return {"bench": "ledger-cost", **row}


def _settles_per_s(folder: Path, identity: Identity | None) -> float:
    took = []
    with Books(folder, identity=identity) as store:
        run = begun(store, total_micro=None, clients=10).run_id
        for number in range(1, 301):
            plan = small_plan(small_view(number, [1] * 10))
            began = time.perf_counter()
            play(store, run, plan, set(range(10)))
            took.append(time.perf_counter() - began)
    return 10 / statistics.median(took)


def start(entries: int = MILLION) -> Row:
    """Start on so many entries, as left and as killed; and a verify of all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        identity = load_or_create(folder)
        prices = [1] * CLIENTS
        view = small_view(1, prices, budgets=[10 * CLIENTS])
        began = time.perf_counter()
        with Books(folder, identity=identity) as store:
            run = begun(store, total_micro=None, clients=CLIENTS).run_id
            number = 0
            while store.head is None or store.head.seq < entries:
                number += 1
                play(store, run, small_plan(_numbered(view, number)), set(range(CLIENTS)))
            found = store.head.seq
        built = time.perf_counter() - began
        row: dict[str, object] = {
            "entries": found,
            "database_mb": round((folder / "coordinator.db").stat().st_size / 1e6),
            "build_s": round(built, 1),
            "start_s": _timed(lambda: Books(folder, identity=identity)),
        }
        store = Books(folder, identity=identity)
        store.reserve(run, small_plan(_numbered(view, number + 1)), policy="random")
        left = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "coordinator.db-shm"}
        store.close()
        for file, data in left.items():
            (folder / file).write_bytes(data)
        row["start_after_kill_s"] = _timed(lambda: Books(folder, identity=identity))
        with open_reader(folder) as reader:
            began = time.perf_counter()
            assert reader.ledger.verify().balanced
            row["verify_s"] = round(time.perf_counter() - began, 2)
        return {"bench": "ledger-start", **row}


def _numbered(view: RoundView, number: int) -> RoundView:

    return replace(view, round=number)


def _timed(opened: Callable[[], Books]) -> float:
    began = time.perf_counter()
    store = opened()
    took = time.perf_counter() - began
    store.close()
    return round(took, 2)


def rows() -> Rows:
    """Return every figure."""
    yield cost()
    yield start()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", default="")
    parser.add_argument("--entries", type=int, default=MILLION)
    given = parser.parse_args()
    if given.row in ("", "cost"):
        show([cost()])
    if given.row in ("", "start"):
        show([start(given.entries)])
