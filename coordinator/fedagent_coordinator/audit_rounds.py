"""Do the books of the rounds say what the ledger says? Both ways, row by row.

The entries are hash-chained, these tables are not: whatever they say of money and of
who was ordered is compared with the entries, and every entry needs its row.
"""

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .ledger import Entry

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
    """Compare plans, reservations, outcomes and results with the entries.

    Args:
        db: The database.
        reserved: Every reserve entry.
        ended: How each reservation ended, ``settle`` or ``void``.
        problem: Takes what is wrong, one line each.
    """
    clients = {place: entry for place, entry in reserved.items() if place[2] is not None}
    books = _RoundCheck(db, clients, ended, problem)
    books.check_budgets()
    books.check_reservations()
    states = books.check_plans()
    books.check_round_ends(states)
    books.check_results(books.check_outcomes())
    rents = {place: entry for place, entry in reserved.items() if place[2] is None}
    _check_rents(_RoundCheck(db, rents, ended, problem), states)


@dataclass(frozen=True, slots=True)
class _RoundCheck:
    """One comparison."""

    db: sqlite3.Connection
    reserved: Mapping[Place, Entry]
    ended: Mapping[Place, str]
    problem: Callable[[str], None]

    def check_budgets(self) -> None:
        """What was reserved at each edge is what was planned."""
        spent: Counter[_AtEdge] = Counter()
        for (run_id, round_, _), entry in self.reserved.items():
            spent[run_id, round_, entry.edge] += entry.amount_micro
        rows = self.db.execute("SELECT run_id, round, edge, reserved_micro FROM edge_budgets")
        planned: Counter[_AtEdge] = Counter({tuple(row[:3]): row[3] for row in rows})
        for key in sorted({*spent, *planned}, key=str):
            if spent[key] != planned[key]:
                self.problem(f"round {key[1]}, edge {key[2]}: reserved is not what was planned")

    def check_reservations(self) -> None:
        """Every reservation has its entry, and every entry its reservation."""
        missing = set(self.reserved)
        for run_id, round_, client, edge, price in self.db.execute(
            "SELECT run_id, round, client, edge, price_micro FROM reservations"
        ):
            place = (run_id, round_, client)
            missing.discard(place)
            found = self.reserved.get(place)
            if found is None or (found.edge, found.amount_micro) != (edge, price):
                self.problem(f"round {round_}, client {client}: reservation without its entry")
        for _, round_, client in sorted(missing, key=str):
            self.problem(f"round {round_}, client {client}: its reservation is missing")

    def check_plans(self) -> dict[tuple[str, int], str]:
        """What was decided and fed back is sealed; return the state of each round."""
        states: dict[tuple[str, int], str] = {}
        counts = Counter(place[:2] for place in self.reserved)
        for (
            run_id,
            round_,
            state,
            ordered,
            view,
            selection,
            plan,
            feedback,
            seal,
            record,
        ) in self.db.execute(
            "SELECT r.run_id, r.round, r.state, r.ordered, r.view, r.selection, r.plan_sha256, "
            "r.feedback, r.feedback_sha256, c.record FROM rounds r "
            "LEFT JOIN controls c USING (run_id, round)"
        ):
            states[run_id, round_] = state
            if plan_digest(view, selection, record or b"") != plan:
                self.problem(f"round {round_}: what was decided has changed")
            if feedback is not None and hashlib.sha256(feedback).digest() != seal:
                self.problem(f"round {round_}: its feedback has changed")
            if counts[run_id, round_] != ordered:
                self.problem(f"round {round_}: the number of reservations has changed")
        return states

    def check_round_ends(self, states: Mapping[tuple[str, int], str]) -> None:
        """Every reservation of an ended round has ended, of an open round has not."""
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

    def check_outcomes(self) -> dict[_AtEdge, Counter[str]]:
        """Every outcome is paid what was settled; return the sums at each edge."""
        done = {
            (run_id, round_)
            for run_id, round_ in self.db.execute(
                "SELECT run_id, round FROM rounds WHERE state = 'done'"
            )
        }
        missing = {place for place in self.reserved if place[:2] in done and place in self.ended}
        sums: dict[_AtEdge, Counter[str]] = {}
        for run_id, round_, client, edge, in_time, used, paid in self.db.execute(
            "SELECT run_id, round, client, edge, in_time, used, paid_micro FROM outcomes"
        ):
            place = (run_id, round_, client)
            entry, settled = self.reserved.get(place), self.ended.get(place) == "settle"
            if place not in missing or entry is None or entry.edge != edge:
                self.problem(f"round {round_}, client {client}: outcome without its entries")
                continue
            missing.discard(place)
            due = entry.amount_micro if settled else 0
            if paid != due:
                self.problem(f"round {round_}, client {client}: paid {paid}, the ledger says {due}")
            if (in_time or used) and not settled:
                self.problem(f"round {round_}, client {client}: used, the ledger says void")
            at_edge = sums.setdefault((run_id, round_, edge), Counter())
            at_edge.update(ordered=1, in_time=in_time, used=used, spent_micro=due)
        for _, round_, client in sorted(missing, key=str):
            self.problem(f"round {round_}, client {client}: its outcome is missing")
        return sums

    def check_results(self, sums: Mapping[_AtEdge, Counter[str]]) -> None:
        """What an edge spent, and how many it used, is the sum of its outcomes."""
        missing = set(sums)
        for run_id, round_, edge, *said in self.db.execute(
            "SELECT run_id, round, edge, ordered, in_time, used, spent_micro FROM edge_results"
        ):
            missing.discard((run_id, round_, edge))
            due = sums.get((run_id, round_, edge), Counter())
            for name, value in zip(_SUMMED, said, strict=True):
                if value != due[name]:
                    self.problem(
                        f"round {round_}, edge {edge}: {name} is {value}, "
                        f"its outcomes say {due[name]}"
                    )
        for _, round_, edge in sorted(missing, key=str):
            self.problem(f"round {round_}, edge {edge}: its result is missing")


def _check_rents(books: _RoundCheck, states: Mapping[tuple[str, int], str]) -> None:
    """Every edge that was rented has its entry, and every rent its round's edge."""
    missing = set(books.reserved)
    for run_id, round_, edge, rent in books.db.execute(
        "SELECT run_id, round, edge, rent_micro FROM controls WHERE edge IS NOT NULL"
    ):
        place = (run_id, round_, None)
        missing.discard(place)
        found = books.reserved.get(place)
        if found is None or (found.edge, found.amount_micro) != (edge, rent):
            books.problem(f"round {round_}, edge {edge}: rent without its entry")
    for _, round_, _ in sorted(missing, key=str):
        books.problem(f"round {round_}: the edge that was rented is missing")
    books.check_round_ends(states)


_SUMMED = ("ordered", "in_time", "used", "spent_micro")


def plan_digest(view: bytes, selection: bytes, controls: bytes = b"") -> bytes:
    """Return the digest that seals what a round decided."""
    seal = hashlib.sha256(hashlib.sha256(view).digest() + selection).digest()
    if not controls:
        return seal
    return hashlib.sha256(seal + hashlib.sha256(controls).digest()).digest()
