"""Runs in a real store: small rounds of a few numbers, crashes, and an intruder with an editor."""

import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from fedagent_coordinator.books.ledger import (
    GENESIS,
    bound_by,
    chain_hash,
    digest_of,
    entries_of,
)
from fedagent_coordinator.books.mark import MARK, MarkFile, read_mark
from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.books.schema import DATABASE
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.effects import (
    BookEvaluation,
    Controls,
    Details,
    EdgeResult,
    Reserve,
    Settle,
)
from fedagent_coordinator.placement.base import Placement, PlacementView
from fedagent_coordinator.policies import RoundView, explained
from fedagent_node.data_dir import Identity
from fedagent_protocol.messages import OpinionMode
from fedagent_protocol.signed import ledger_head

from .rounds import column_view, ended

DIGEST = "d" * 64
MEMORY = Path("/dev/shm")
"""Where a sync costs nothing; what a crash leaves is laid down by the test itself."""


class Crash(BaseException):
    pass


class CrashAt:
    """A checkpoint that crashes once, at one name."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __call__(self, name: str) -> None:
        if name == self.name:
            self.name = ""
            raise Crash(name)


def small_view(
    round_: int,
    prices: Sequence[int],
    *,
    budgets: Sequence[int] = (1000,),
    edges: Sequence[int] | None = None,
    **features: Sequence[float],
) -> RoundView:
    """One pair per client; client i sees edge `edges[i]`, edge 0 by default."""
    n = len(prices)
    columns: Any = {"compute": np.linspace(0, 1, n).tolist(), **features}
    view = column_view(round_, price=prices, **columns)
    return replace(
        view,
        pair_edge=np.asarray(edges if edges is not None else [0] * n, dtype=np.int32),
        edge_budget=np.asarray(budgets, dtype=np.int64),
    )


def small_plan(view: RoundView, chosen: Sequence[int] | None = None) -> Reserve:
    n = len(view.pair_client)
    pairs = np.asarray(range(n) if chosen is None else chosen, dtype=np.int64)
    return Reserve(
        round=view.round,
        view=view,
        selection=explained(view, pairs),
        context_seq=pairs + 7,
    )


def rented_plan(round_: int, rent: int = 250, *, prices: tuple[int, ...] = (100, 200)) -> Reserve:
    view = small_view(round_, prices, budgets=(1000, 1000), edges=[1] * len(prices))
    market = PlacementView(
        round=round_,
        edge_live=np.array([True, True]),
        edge_rent=np.array([900, rent], dtype=np.int64),
        budget_micro=5000,
    )
    controls = Controls(
        iterations=6,
        horizon=9.0,
        notes={"rho": 5.7},
        view=market,
        placement=Placement(edge=1, rent_micro=rent),
    )
    return structs.replace(small_plan(view), controls=controls)


def small_result(
    plan: Reserve, paid: Collection[int], *, late: Collection[int] = (), rent: int = 0
) -> Settle:
    """Everybody in `paid` (client indices) delivered; those in `late` after the deadline."""
    view, pairs = plan.view, plan.selection.pairs
    clients = view.pair_client[pairs].tolist()
    n = len(pairs)
    delivered = np.array([c in paid for c in clients], dtype=np.bool_)
    in_time = np.array([c in paid and c not in late for c in clients], dtype=np.bool_)
    tau = np.linspace(0.1, 0.3, n).tolist()
    feedback = replace(
        ended(view, pairs.tolist(), tau_s=tau, x=in_time.tolist()),
        lc_s=np.full(n, 0.25),
        ut_s=np.full(n, 0.1),
        censored=~delivered,
        unpaid=~delivered,
        num_samples=np.full(n, 10, dtype=np.int64),
        loss=np.full(n, 0.5),
        rent_micro=rent,
    )
    details = Details(
        status=tuple("arrived" if d else "missed" for d in delivered.tolist()),
        weight=in_time.astype(np.float64),
        norm=np.full(n, np.nan),
        reason=tuple("" if d else "silent" for d in delivered.tolist()),
    )
    edges = []
    for edge in sorted(set(view.pair_edge[pairs].tolist())):
        here = view.pair_edge[pairs] == edge
        price = view.client_price[view.pair_client[pairs]]
        edges.append(
            EdgeResult(
                edge=f"edge-{edge}",
                index=edge,
                ordered=int(here.sum()),
                in_time=int(in_time[here].sum()),
                used=int(in_time[here].sum()),
                spent_micro=int(price[here & delivered].sum()),
                failed="",
                model="",
                weight=1.0,
            )
        )
    return Settle(
        round=plan.round,
        feedback=feedback,
        details=details,
        edges=tuple(edges),
        timing_ms={"observe": 1.5},
    )


def play(
    store: Books, run: str, plan: Reserve, paid: Collection[int], *, late: Collection[int] = ()
) -> None:
    store.reserve(run, plan, policy="random")
    assert store.settle(run, small_result(plan, paid, late=late))


def opinions(round_: int, scores: dict[int, float], **changes: object) -> BookEvaluation:
    """Clients' opinions at edge 0, resting on ten samples each."""
    n = len(scores)
    given: dict[str, object] = {
        "round": round_,
        "slot": round_ + 1,
        "digest": DIGEST,
        "metric": "accuracy" if n else "",
        "asked": n + 1,
        "client": np.array(list(scores), dtype=np.int64),
        "edge": np.zeros(n, dtype=np.int64),
        "score": np.array(list(scores.values())),
        "samples": np.full(n, 10, dtype=np.int64),
        "epsilon": np.full(n, 0.5),
        "reasons": {"late": 1},
        "seconds": 0.25,
        **changes,
    }
    return BookEvaluation(**given)  # type: ignore[arg-type] # a test's keywords


def volunteers(round_: int, clients: list[int]) -> BookEvaluation:
    return BookEvaluation(
        mode=OpinionMode.PEERS,
        round=round_,
        slot=round_ + 1,
        digest=DIGEST,
        asked=5,
        client=np.array(clients, dtype=np.int64),
        edge=np.zeros(len(clients), dtype=np.int64),
        reasons={},
        seconds=1.5,
    )


def begun(
    store: Books, *, total_micro: int | None = 10_000, clients: int = 8, edges: int = 2
) -> RunRow:
    run = store.begin_run(
        recipe_digest="d" * 64, recipe="rounds = 1", seed=7, total_micro=total_micro
    )
    indices = store.indices(run.run_id)
    indices.clients([f"agent-{i}" for i in range(clients)])
    for i in range(edges):
        indices.edge(f"edge-{i}")
    return run


def files_of(folder: Path) -> dict[str, bytes]:
    """The bytes a power cut would leave: every file of the data directory."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".lock"}


def lay_down(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a fresh folder; the shared-memory index does not survive a crash."""
    folder.mkdir()
    for name, data in files.items():
        if not name.endswith("-shm"):
            (folder / name).write_bytes(data)
    return folder


def tampered(folder: Path, *changes: str) -> None:
    with closing(sqlite3.connect(folder / DATABASE)) as sql:
        for verb in ("update", "delete"):
            sql.execute(f"DROP TRIGGER IF EXISTS entries_no_{verb}")
        for change in changes:
            sql.execute(change)
        sql.commit()


def recompute(folder: Path, *changes: str, key: Identity | None = None) -> None:
    """Change the books as somebody who knows how they are made, with or without the key."""
    tampered(folder, *changes)
    with closing(sqlite3.connect(folder / DATABASE)) as sql:
        entries, hash_ = list(entries_of(sql)), GENESIS
        (until,) = sql.execute("SELECT COALESCE(MAX(last), 0) FROM closed").fetchone()
        newest = {bound_by(e.kind, e.run_id, e.round): e.seq for e in entries}
        for entry in entries:
            bound, rows = entry.digest, bound_by(entry.kind, entry.run_id, entry.round)
            if newest[rows] == entry.seq and not 1 <= rows[2] <= until:
                bound = digest_of(sql, rows)
            hash_ = chain_hash(hash_, entry._replace(digest=bound)[:-1])
            sql.execute(
                "UPDATE entries SET digest = ?, hash = ? WHERE seq = ?", (bound, hash_, entry.seq)
            )
        sql.commit()
    mark = read_mark(folder / MARK)
    assert mark is not None
    (folder / MARK).unlink()
    signature = mark.signature if key is None else key.sign(ledger_head(mark.seq, hash_))
    fresh_mark = structs.replace(mark, hash=hash_.hex(), signature=signature)
    MarkFile(folder / MARK, fresh_mark).close()


def problems(folder: Path, *changes: str) -> tuple[str, ...]:
    tampered(folder, *changes)
    with open_reader(folder) as reader:
        report = reader.ledger.verify()
    assert report.balanced == (not report.problems)
    return report.problems
