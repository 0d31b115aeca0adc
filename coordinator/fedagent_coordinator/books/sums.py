"""What rounds add up to: money by account, and what each client did; of closed ones it is kept."""

import sqlite3
from collections import Counter
from collections.abc import Mapping

import msgspec
from msgspec import structs

_OF = "run_id = ?1 AND round BETWEEN ?2 AND ?3"


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """What a client did, in some rounds; `released` counts updates that may have left it."""

    ordered: int = 0
    in_time: int = 0
    used: int = 0
    paid_micro: int = 0
    released: int = 0
    last_round: int | None = None
    last_status: str | None = None
    last_reason: str = ""

    def __add__(self, later: "Tally") -> "Tally":
        """Return both, the other one being of later rounds."""
        sums = (a + b for a, b in zip(structs.astuple(self)[:5], structs.astuple(later)[:5]))  # noqa: B905 - alike
        last = self if later.last_round is None else later
        return Tally(*sums, *structs.astuple(last)[5:])


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """What rounds of a run add up to: money by kind of entry and by account, in micro-credits."""

    done: int = 0
    totals: dict[str, int] = {}
    accounts: dict[str, int] = {}
    clients: dict[int, Tally] = {}

    def __add__(self, later: "Sums") -> "Sums":
        """Return both, the other one being of later rounds."""
        clients = dict(self.clients)
        for client, tally in later.clients.items():
            clients[client] = clients.get(client, Tally()) + tally
        return Sums(
            done=self.done + later.done,
            totals=_added(self.totals, later.totals),
            accounts=_added(self.accounts, later.accounts),
            clients=clients,
        )


def sums_of(sql: sqlite3.Connection, run_id: str, first: int, last: int) -> Sums:
    """Return what rounds that are in a database add up to."""
    key, accounts, totals = (run_id, first, last), Counter[str](), Counter[str]()
    for kind, source, target, amount in sql.execute(
        "SELECT kind, source, target, SUM(amount_micro) FROM entries "  # noqa: S608 - constants
        f"WHERE {_OF} AND kind NOT IN ('fact', 'note') GROUP BY kind, source, target",
        key,
    ):
        totals[kind] += amount
        accounts[source] -= amount
        accounts[target] += amount
    done = f"SELECT COUNT(*) FROM rounds WHERE {_OF} AND state = 'done'"  # noqa: S608 - constants
    return Sums(
        done=sql.execute(done, key).fetchone()[0],
        totals=dict(sorted(totals.items())),
        accounts=dict(sorted(accounts.items())),
        clients=tallies(sql, *key),
    )


def tallies(
    sql: sqlite3.Connection, run_id: str, first: int = 1, last: int = 2**62
) -> dict[int, Tally]:
    """Return what each client did in rounds that are in a database."""
    rows = sql.execute(
        "SELECT v.client, COUNT(*), COALESCE(SUM(o.in_time), 0), COALESCE(SUM(o.used), 0), "
        "COALESCE(SUM(CASE WHEN NOT o.void THEN v.price_micro END), 0), "
        "SUM(COALESCE(o.status, '') <> 'declined'), "
        # Beside one MAX, sqlite takes status and reason from the row that has it.
        "MAX(o.round), o.status, COALESCE(o.reason, '') "
        "FROM reservations v LEFT JOIN outcomes o ON o.run_id = v.run_id "
        "AND o.round = v.round AND o.client = v.client "
        "WHERE v.run_id = ? AND v.round BETWEEN ? AND ? GROUP BY v.client ORDER BY v.client",
        (run_id, first, last),
    )
    return {row[0]: Tally(*row[1:]) for row in rows}


def paid_updates(sql: sqlite3.Connection, run_id: str, closed: Mapping[int, Tally]) -> Counter[str]:
    """Return how many updates of each agent were paid; of `closed` rounds those in time."""
    rows = sql.execute(
        "SELECT client, COUNT(*) FROM outcomes WHERE run_id = ? AND NOT void GROUP BY client",
        (run_id,),
    )
    by_client = Counter({client: tally.in_time for client, tally in closed.items()})
    by_client.update(dict(rows.fetchall()))
    ids = sql.execute("SELECT idx, agent_id FROM clients WHERE run_id = ?", (run_id,))
    return Counter({agent: by_client[client] for client, agent in ids if by_client[client]})


def _added(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    both = Counter(one)
    both.update(other)
    return dict(sorted(both.items()))
