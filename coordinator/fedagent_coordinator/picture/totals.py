"""The newest rounds of one run, kept up to date round by round instead of being read again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from msgspec import structs

from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.books.rows import RoundRow
from fedagent_coordinator.policies.base import RoundView, Selection

from .records import Bar, Reach, RoundCard, Timeline

KEPT_ROUNDS = 150
"""Rounds that the page shows."""
MOST_ROUNDS = 5000
"""Rounds in a report's curves at most."""


TOLD = ("upload_bps", "download_bps", "battery", "temperature_c", "signal_dbm")
"""Of what devices say of themselves, what an operator looks for first: bit/s, 0 to 1, °C, dBm."""


@dataclass(slots=True)
class Books:
    """The newest rounds of a run, up to round `seen` or the open one, and the newest view."""

    run_id: str
    whole: bool = False
    """For one look at a whole run: `MOST_ROUNDS` are kept."""
    max_wait_s: float | None = None
    ids: list[str] = field(default_factory=list)
    edge_ids: list[str] = field(default_factory=list)
    rounds: dict[int, RoundCard] = field(default_factory=dict)
    seen: int = -1
    view: RoundView | None = None
    last: Timeline | None = None
    running: Timeline | None = None
    reach: tuple[Reach, ...] = ()
    contexts: dict[str, dict[str, float]] = field(default_factory=dict)

    def update(self, reader: Reader) -> None:
        """Take in the rounds since the last time."""
        self.ids = [one.agent for one in reader.devices(self.run_id)]
        self.edge_ids = list(reader.edges(self.run_id))
        newest = reader.last_round(self.run_id)
        settled = newest - (reader.round_state(self.run_id, newest) == "open")
        kept = MOST_ROUNDS if self.whole else KEPT_ROUNDS
        since = max(0, newest - kept) if self.seen < 0 else self.seen
        if settled != self.seen or (newest and newest not in self.rounds):
            self.seen = settled
            self._note_rounds(reader, since, newest)
            for old in list(self.rounds)[:-kept]:
                del self.rounds[old]
            self._note_newest(reader, newest)

    def _note_rounds(self, reader: Reader, since: int, newest: int) -> None:
        spent: dict[int, list[int]] = {}
        numbers = {name: at for at, name in enumerate(self.edge_ids)}
        for row in reader.edge_results(self.run_id, since=since):
            its = spent.setdefault(row.round, [0] * len(self.edge_ids))
            its[numbers[row.edge_id]] = row.spent_micro
        for one in reader.rounds(self.run_id, last=newest - since) if newest > since else ():
            self.rounds[one.round] = _card(one, tuple(spent.get(one.round, ())))

    def _note_newest(self, reader: Reader, newest: int) -> None:
        self.running = None
        if not newest:
            return
        self.view, selection = reader.plan(self.run_id, newest)
        self.reach = reach_of(self.view, selection, self.ids)
        self.contexts = contexts_of(self.view, self.ids)
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

        def bar(pair: int) -> Bar:
            client, edge = int(view.pair_client[pair]), int(view.pair_edge[pair])
            plan = Bar(
                device=self.ids[client],
                edge=self.edge_ids[edge],
                price_micro=int(view.client_price[client]),
                status=card.state,
            )
            if (row := ended.get(client)) is None:
                return plan
            took = {"download_s": row.dt_s, "train_s": row.lc_s, "upload_s": row.ut_s}
            came = {"status": row.status, "in_time": row.in_time, "used": row.used}
            return structs.replace(plan, **came, **took, total_s=row.tau_s)

        return Timeline(
            round=round_,
            state=card.state,
            opened_ms=card.opened_ms,
            deadline_s=view.deadline_s if math.isfinite(view.deadline_s) else None,
            max_wait_s=self.max_wait_s,
            bars=tuple(map(bar, selection.pairs.tolist())),
        )


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


def contexts_of(view: RoundView, ids: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return `TOLD` of each client in three digits, where it is known; of its best link."""
    found: dict[str, dict[str, float]] = {}
    for name in TOLD:
        best = np.full(len(view.client_price), np.nan)
        np.fmax.at(best, view.pair_client, view.optional(name))
        for client in np.flatnonzero(np.isfinite(best)).tolist():
            found.setdefault(ids[client], {})[name] = float(f"{best[client]:.3g}")
    return found


def _card(row: RoundRow, spent: tuple[int, ...]) -> RoundCard:
    return structs.replace(
        msgspec.convert(row, RoundCard, from_attributes=True),
        seconds=round(row.seconds, 3),
        metrics={name: round(value, 5) for name, value in row.metrics.items()},
        spent=spent,
    )
