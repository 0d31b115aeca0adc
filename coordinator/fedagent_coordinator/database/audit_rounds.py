"""Do the tables of rounds agree with the ledger? Both ways, row by row.

The entries are hash-chained, these tables are not: whatever they say of money and of
who was ordered is compared with the entries, and every entry needs its row.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .ledger import Entry
from .rounds import outcomes_seal, plan_seal

Place = tuple[str | None, int | None, int | None]
"""Run, round and client: what one reservation is known by; the rent has no client."""
_AtEdge = tuple[str | None, int | None, int | None]
"""Run, round and edge."""


def check_rounds(
    db: sqlite3.Connection,
    reserved: Mapping[Place, Entry],
    ended: Mapping[Place, str],
    problem: Callable[[str], None],
) -> None:
    """Compare plans, reservations, rents, outcomes and results of edges with the entries.

    Args:
        db: The database.
        reserved: Every reserve entry.
        ended: How each reservation ended, ``settle`` or ``void``.
        problem: Takes what is wrong, one line each.
    """
    audit = _RoundAudit(db, reserved, ended, problem)
    audit.check_budgets()
    audit.check_reservations()
    audit.check_rents()
    audit.check_ends(audit.check_seals())
    audit.check_results(audit.check_outcomes())


@dataclass(frozen=True, slots=True)
class _RoundAudit:
    db: sqlite3.Connection
    reserved: Mapping[Place, Entry]
    ended: Mapping[Place, str]
    problem: Callable[[str], None]

    def check_budgets(self) -> None:
        spent: Counter[_AtEdge] = Counter()
        for (run_id, round_, client), entry in self.reserved.items():
            if client is not None:
                spent[run_id, round_, entry.edge] += entry.amount_micro
        planned: Counter[_AtEdge] = Counter(
            {
                (run_id, round_, edge): micro
                for run_id, round_, edge, micro in self.db.execute(
                    "SELECT run_id, round, edge, reserved_micro FROM edge_budgets"
                )
            }
        )
        for key in sorted({*spent, *planned}, key=str):
            if spent[key] != planned[key]:
                self.problem(f"round {key[1]}, edge {key[2]}: reserved is not what was planned")

    def check_reservations(self) -> None:
        missing = {place for place in self.reserved if place[2] is not None}
        for run_id, round_, client, edge, price in self.db.execute(
            "SELECT run_id, round, client, edge, price_micro FROM reservations"
        ):
            missing.discard((run_id, round_, client))
            if not self._fits((run_id, round_, client), edge, price):
                self.problem(f"round {round_}, client {client}: reservation without its entry")
        for _, round_, client in sorted(missing, key=str):
            self.problem(f"round {round_}, client {client}: its reservation is missing")

    def check_rents(self) -> None:
        missing = {place for place in self.reserved if place[2] is None}
        for run_id, round_, edge, rent in self.db.execute(
            "SELECT run_id, round, rented_edge, rent_micro FROM rounds "
            "WHERE rented_edge IS NOT NULL"
        ):
            missing.discard((run_id, round_, None))
            if not self._fits((run_id, round_, None), edge, rent):
                self.problem(f"round {round_}, edge {edge}: rent without its entry")
        for _, round_, _ in sorted(missing, key=str):
            self.problem(f"round {round_}: the edge that was rented is missing")

    def check_seals(self) -> dict[tuple[str, int], str]:
        states: dict[tuple[str, int], str] = {}
        for row in self.db.execute("SELECT * FROM rounds"):
            run_id, round_ = row["run_id"], row["round"]
            states[run_id, round_] = row["state"]
            if plan_seal(row["view"], row["selection"], row["controls"]) != row["plan_sha256"]:
                self.problem(f"round {round_}: what was decided has changed")
            seal = row["outcomes_sha256"]
            if seal is not None and outcomes_seal(self.db, run_id, round_, row["psi"]) != seal:
                self.problem(f"round {round_}: its outcomes have changed")
        return states

    def check_ends(self, states: Mapping[tuple[str, int], str]) -> None:
        for place in self.reserved:
            run_id, round_, client = place
            who = "the rent" if client is None else f"client {client}"
            state = states.get((str(run_id), int(round_ or 0)))
            if state is None:
                self.problem(f"{who} is reserved in round {round_}, which is missing")
            elif (state == "open") == (place in self.ended) or (
                state == "void" and self.ended[place] != "void"
            ):
                self.problem(f"{who} in round {round_}: the round is {state}")

    def check_outcomes(self) -> set[_AtEdge]:
        done = {
            (run_id, round_)
            for run_id, round_ in self.db.execute(
                "SELECT run_id, round FROM rounds WHERE state = 'done'"
            )
        }
        missing = {place for place in self.ended if place[:2] in done and place[2] is not None}
        edges = {
            (*place[:2], entry.edge)
            for place in missing
            if (entry := self.reserved.get(place)) is not None
        }
        for run_id, round_, client, void, delivered in self.db.execute(
            "SELECT run_id, round, client, void, in_time OR used FROM outcomes"
        ):
            place, where = (run_id, round_, client), f"round {round_}, client {client}"
            if place not in missing:
                self.problem(f"{where}: outcome without its entries")
                continue
            missing.discard(place)
            end = self.ended[place]
            if end != ("void" if void else "settle"):
                self.problem(f"{where}: {'void' if void else 'paid'}, the ledger says {end}")
            if delivered and end != "settle":
                self.problem(f"{where}: used, the ledger says void")
        for _, round_, client in sorted(missing, key=str):
            self.problem(f"round {round_}, client {client}: its outcome is missing")
        return edges

    def check_results(self, edges: set[_AtEdge]) -> None:
        found = {
            (run_id, round_, edge)
            for run_id, round_, edge in self.db.execute(
                "SELECT run_id, round, edge FROM edge_results"
            )
        }
        for _, round_, edge in sorted(edges - found, key=str):
            self.problem(f"round {round_}, edge {edge}: its result is missing")
        for _, round_, edge in sorted(found - edges, key=str):
            self.problem(f"round {round_}, edge {edge}: a result without outcomes")

    def _fits(self, place: Place, edge: int, amount_micro: int) -> bool:
        entry = self.reserved.get(place)
        return entry is not None and (entry.edge, entry.amount_micro) == (edge, amount_micro)
