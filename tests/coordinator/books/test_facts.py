"""Every column that says something of a run is bound into the chain, or named here as left out."""

import sqlite3
from contextlib import closing

from fedagent_coordinator.books import facts, schema

ELSEWHERE = {
    "meta": "counted by the mark",
    "entries": "the chain itself",
    "accounts": "sums of the entries",
    "proofs": "its entry has their digest",
    "snapshots": "they have their own digest",
    "clients.label": "what people call it",
    "edges.label": "what people call it",
    "rounds.rented_edge": "compared with its entry, and its id is bound",
    "clients.idx": "the entries name the agent beside it",
    "edges.idx": "the plan names the edge beside it",
    "forgotten.edge": "its id is bound",
}


def test_every_column_is_bound() -> None:
    read: set[str] = set()

    def note(action: int, table: str | None, column: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_READ:
            read.add(f"{table}.{column}")
        return sqlite3.SQLITE_OK

    with closing(sqlite3.connect(":memory:")) as sql:
        schema.prepare(sql, "")
        tables = [
            name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        columns = {
            f"{table}.{row[1]}"
            for table in tables
            for row in sql.execute(f"PRAGMA table_info({table})")
        }
        sql.set_authorizer(note)
        facts.check(sql, {}, print)
    unbound = {
        name
        for name in columns - read
        if name not in ELSEWHERE and name.partition(".")[0] not in ELSEWHERE
    }
    assert not unbound
