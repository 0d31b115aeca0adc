"""What one run came to, kept up to date round by round instead of being added up anew."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from fedagent_coordinator.books.reader import Reader
from fedagent_coordinator.books.rows import DeviceRow, EdgeTotal, OutcomeRow, RoundRow
from fedagent_coordinator.policies.base import FloatArray, IntArray, RoundView, Selection
from fedagent_coordinator.policies.selection import fill

from .records import Bar, Reach, RoundCard, Timeline

KEPT_ROUNDS = 150
"""Rounds that the page shows."""
MOST_ROUNDS = 5000
"""Rounds in a report's curves at most."""
AT_ONCE = 8
"""Rounds whose regret is estimated in one go: the first look must not take long."""


@dataclass(slots=True)
class Tally:
    """What one client did so far."""

    ordered: int = 0
    in_time: int = 0
    used: int = 0
    paid_micro: int = 0
    last_round: int | None = None
    last_status: str = ""
    last_reason: str = ""
    times: tuple[float | None, float | None, float | None, float | None] | None = None

    def add(self, row: OutcomeRow) -> None:
        """Add how one order ended."""
        self.ordered += 1
        self.in_time += row.in_time
        self.used += row.used
        self.paid_micro += row.paid_micro
        self.last_round, self.last_status, self.last_reason = row.round, row.status, row.reason
        if row.dt_s is not None or row.lc_s is not None:
            self.times = (row.dt_s, row.lc_s, row.ut_s, row.tau_s)


@dataclass(slots=True)
class Books:
    """Totals of a run up to round `seen`, its newest rounds, and the newest view."""

    run_id: str
    whole: bool = False
    """For one look at a whole run: `MOST_ROUNDS` are kept, all regret estimated at once."""
    ids: list[str] = field(default_factory=list)
    edge_ids: list[str] = field(default_factory=list)
    clients: list[Tally] = field(default_factory=list)
    edges: dict[str, EdgeTotal] = field(default_factory=dict)
    rounds: dict[int, RoundCard] = field(default_factory=dict)
    seen: int = -1
    view: RoundView | None = None
    last: Timeline | None = None
    running: Timeline | None = None
    reach: tuple[Reach, ...] = ()
    _regretted: int = 0
    _tries: dict[int, int] = field(default_factory=dict)
    _hits: dict[int, int] = field(default_factory=dict)

    @property
    def _kept(self) -> int:
        return MOST_ROUNDS if self.whole else KEPT_ROUNDS

    def update(self, reader: Reader) -> None:
        """Take in the rounds since the last time."""
        self.ids = list(reader.clients(self.run_id))
        self.edge_ids = list(reader.edges(self.run_id))
        newest = reader.last_round(self.run_id)
        if self.seen < 0:
            self._begin(reader, newest)
        else:
            self._go_on(reader, newest)
        self._regret(reader)

    def _begin(self, reader: Reader, newest: int) -> None:
        for row in reader.devices(self.run_id):
            self.clients.append(_tally(row))
        self.seen = newest - (reader.round_state(self.run_id, newest) == "open")
        since = max(0, newest - self._kept)
        self._regretted = max(since, newest - KEPT_ROUNDS)
        self._note_rounds(reader, since, newest)
        totals = reader.edge_totals(self.run_id, until=since)
        self.edges = {total.edge_id: total for total in totals}
        self._note_edges(reader, since)
        self._note_newest(reader, newest)

    def _go_on(self, reader: Reader, newest: int) -> None:
        settled = newest - (reader.round_state(self.run_id, newest) == "open")
        if settled == self.seen and (newest in self.rounds or not newest):
            return
        since, self.seen = self.seen, settled
        self._note_rounds(reader, since, newest)
        self._note_edges(reader, since)
        for round_ in range(since + 1, settled + 1):
            for row in reader.outcomes(self.run_id, round_):
                self._of(row.client).add(row)
        self._note_newest(reader, newest)

    def _of(self, client: int) -> Tally:
        while len(self.clients) <= client:
            self.clients.append(Tally())
        return self.clients[client]

    def _note_rounds(self, reader: Reader, since: int, newest: int) -> None:
        if newest <= since:
            return
        for row in reader.rounds(self.run_id, last=newest - since):
            self.rounds[row.round] = _card(row)
        for old in list(self.rounds)[: -self._kept]:
            del self.rounds[old]

    def _note_edges(self, reader: Reader, since: int) -> None:
        numbers = {name: at for at, name in enumerate(self.edge_ids)}
        spent: dict[int, list[int]] = {}
        for row in reader.edge_results(self.run_id, since=since):
            tally = self.edges.setdefault(row.edge_id, EdgeTotal(row.edge_id))
            tally.spent_micro += row.spent_micro
            tally.ordered += row.ordered
            tally.in_time += row.in_time
            tally.last_round, tally.failed = row.round, row.failed
            its = spent.setdefault(row.round, [0] * len(self.edge_ids))
            its[numbers[row.edge_id]] = row.spent_micro
        for round_, values in spent.items():
            if round_ in self.rounds:
                self.rounds[round_] = structs.replace(self.rounds[round_], spent=tuple(values))

    def _note_newest(self, reader: Reader, newest: int) -> None:
        """Draw the newest two rounds, and who reaches whom."""
        self.running = None
        if not newest:
            return
        self.view, selection = reader.plan(self.run_id, newest)
        self.reach = reach_of(self.view, selection, self.ids)
        if newest > self.seen:
            self.running = self._timeline(reader, newest, self.view, selection)
            newest -= 1
        if newest and (self.last is None or self.last.round != newest):
            view, selection = reader.plan(self.run_id, newest)
            self.last = self._timeline(reader, newest, view, selection)

    def _timeline(
        self, reader: Reader, round_: int, view: RoundView, selection: Selection
    ) -> Timeline:
        ended = {row.client: row for row in reader.outcomes(self.run_id, round_)}
        card = self.rounds[round_]
        bars = []
        for pair in selection.pairs.tolist():
            client, edge = int(view.pair_client[pair]), int(view.pair_edge[pair])
            plan = Bar(
                device=self.ids[client],
                edge=self.edge_ids[edge],
                price_micro=int(view.client_price[client]),
                status=card.state,
            )
            row, before = ended.get(client), self._of(client).times
            if row is not None:
                bars.append(_ended_bar(plan, row))
            elif before is not None:
                down, train, up, total = before
                bars.append(
                    structs.replace(
                        *(plan,),
                        expected=True,
                        download_s=down,
                        train_s=train,
                        upload_s=up,
                        total_s=total,
                    )
                )
            else:
                bars.append(plan)
        deadline = view.deadline_s if math.isfinite(view.deadline_s) else None
        return Timeline(
            round=round_,
            state=card.state,
            opened_ms=card.opened_ms,
            deadline_s=deadline,
            max_wait_s=None,
            bars=tuple(bars),
        )

    def _regret(self, reader: Reader) -> None:
        """Estimate the regret of rounds for which that was not done, oldest first."""
        pruned = reader.pruned_until(self.run_id)
        until = min(self.seen, self._regretted + (KEPT_ROUNDS if self.whole else AT_ONCE))
        for round_ in range(self._regretted + 1, until + 1):
            self._regretted = round_
            rows = reader.outcomes(self.run_id, round_)
            if not rows or round_ not in self.rounds:
                continue
            for row in rows:
                self._tries[row.client] = self._tries.get(row.client, 0) + 1
                self._hits[row.client] = self._hits.get(row.client, 0) + row.in_time
            if round_ <= pruned:
                continue
            view, selection = reader.plan(self.run_id, round_)
            n = len(view.client_price)
            hits = np.fromiter((self._hits.get(i, 0) for i in range(n)), np.int64, n)
            tries = np.fromiter((self._tries.get(i, 0) for i in range(n)), np.int64, n)
            value = round_regret(view, selection.pairs, chances(hits, tries))
            card = structs.replace(self.rounds[round_], regret=round(value, 4))
            self.rounds[round_] = card


def reach_of(view: RoundView, selection: Selection, ids: Sequence[str]) -> tuple[Reach, ...]:
    """Return which edges each client reaches, at what rate (two digits), and where it trains."""
    rates = np.nan_to_num(view.optional("upload_bps"), nan=0.0).tolist()
    chosen = set(selection.pairs.tolist())
    found: dict[int, list[tuple[int, int, bool]]] = {}
    columns = zip(view.pair_client.tolist(), view.pair_edge.tolist(), rates, strict=True)
    for pair, (client, edge, rate) in enumerate(columns):
        link = (edge, int(float(f"{rate:.2g}")), pair in chosen)
        found.setdefault(client, []).append(link)
    return tuple(Reach(id=ids[client], edges=tuple(links)) for client, links in found.items())


def labels(names: Mapping[str, str]) -> dict[str, str]:
    """Return a name for each id: what people call it, else the start of the id."""
    return {ident: label or ident[:8] for ident, label in names.items()}


def _tally(row: DeviceRow) -> Tally:
    return Tally(
        ordered=row.ordered,
        in_time=row.in_time,
        used=row.used,
        paid_micro=row.paid_micro,
        last_round=row.last_round,
        last_status=row.last_status or "",
        last_reason=row.last_reason,
    )


def _card(row: RoundRow) -> RoundCard:
    return RoundCard(
        round=row.round,
        state=row.state,
        opened_ms=row.opened_ms,
        seconds=round(row.seconds, 3),
        ordered=row.ordered,
        in_time=row.in_time,
        used=row.used,
        paid_micro=row.paid_micro,
        rent_micro=row.rent_micro,
        reason=row.reason,
        metrics={name: round(value, 5) for name, value in row.metrics.items()},
    )


def _ended_bar(plan: Bar, row: OutcomeRow) -> Bar:
    return structs.replace(
        plan,
        status=row.status,
        in_time=row.in_time,
        used=row.used,
        download_s=row.dt_s,
        train_s=row.lc_s,
        upload_s=row.ut_s,
        total_s=row.tau_s,
    )


def round_regret(view: RoundView, pairs: IntArray, chance: FloatArray) -> float:
    """Return how many more updates in time a round could have had, by what is estimated.

    As many devices as were chosen, by their chances within the same budgets, against those
    that were chosen; never below 0.

    Args:
        view: The round as its policy saw it.
        pairs: int64[S], the chosen pairs.
        chance: float64[N], estimated chance of each client to be in time, the round included.
    """
    its = chance[view.pair_client]
    order = np.lexsort((view.pair_price, -its)).astype(np.int64)
    best = fill(view, order)[: len(pairs)]
    return max(0.0, float(its[best].sum() - its[pairs].sum()))


def chances(in_time: IntArray, ordered: IntArray) -> FloatArray:
    """Return the mean of a uniform prior after so many orders, float64[N]."""
    return np.asarray((in_time + 1.0) / (ordered + 2.0), dtype=np.float64)
