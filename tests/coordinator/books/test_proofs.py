"""What was paid is read from the claims: late work counts for the round it was begun in."""

import sqlite3

from fedagent_coordinator.books.proofs import recent_work
from fedagent_protocol.signed import WorkClaim

RUN, EDGE, DIGEST = "1" * 32, "e" * 32, "d" * 64


def claim(agent: str, round_: int, made_in: int = 0) -> bytes:
    return WorkClaim(RUN, round_, EDGE, agent, DIGEST, DIGEST, DIGEST, 9, 1, 1, made_in).statement


def test_work_that_was_paid_is_known_after_a_restart() -> None:
    sql = sqlite3.connect(":memory:")
    sql.execute("CREATE TABLE proofs (run_id TEXT, round INTEGER, claim BLOB)")
    paid = [("a", 3, 0), ("a", 7, 0), ("b", 7, 4), ("c", 8, 7)]
    rows = [(RUN, round_, claim(agent, round_, made)) for agent, round_, made in paid]
    rows.append(("2" * 32, 8, claim("d", 8)))
    sql.executemany("INSERT INTO proofs VALUES (?, ?, ?)", rows)
    assert recent_work(sql, RUN, 4) == {("a", 7), ("b", 4), ("c", 7)}
