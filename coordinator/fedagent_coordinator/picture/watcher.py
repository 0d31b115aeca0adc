"""Makes one picture after another of a data directory, for all viewers together."""

import math
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import msgspec
from msgspec import structs

from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.read import Reader, open_reader
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.errors import CoordinatorError
from fedagent_coordinator.site.enrolment import members_in
from fedagent_node.data_dir import read_public
from fedagent_node.errors import CredentialsError
from fedagent_protocol.signed import identity_of
from fedagent_task.recipe.spec import Recipe

from .alarms import alarms
from .devices import DeviceCard, devices_of
from .records import EdgeCard, Field, RoundCard, Waiting
from .status_files import Known, RunStatus
from .summary import RunSummary, summarize
from .totals import Books

T = TypeVar("T")
SHARE = 20
"""What is seldom made takes at most one second in so many."""


class Watcher:
    """One data directory. It belongs to the thread that looks first.

    Args:
        folder: The coordinator's data directory.
        wall: The wall clock, seconds since 1970.
        run: Whose picture is wanted; none for the newest.
        whole: As of `Books`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        wall: Callable[[], float] = time.time,
        run: str | None = None,
        whole: bool = False,
    ) -> None:
        self.folder = folder
        self._wall = wall
        self._run, self._whole = run, whole
        self._open = ExitStack()
        self._reader: Reader | None = None
        self._epoch = secrets.token_hex(4)
        self._coordinator = ""
        self._version = 0
        self._books = Books("")
        self._recipe: Recipe | None = None
        self._heard = Known(run="")
        self._heard_at = -1
        self._mark: list[int] = []
        self._made: dict[str, tuple[object, float]] = {}

    def close(self) -> None:
        """Close the database."""
        self._open.close()
        self._reader = None

    def moved(self) -> bool:
        """Return whether something was written since this was asked last; cheap."""
        mark: list[int] = []
        if self._reader is not None:
            mark.append(self._reader.written())
        for name in (RunStatus.FILE, Known.FILE):
            with suppress(OSError):
                mark.append((self.folder / name).stat().st_mtime_ns)
        former, self._mark = self._mark, mark
        return former != mark

    def look(self) -> Field:
        """Return the field as it is now; empty where there is no run that can be read."""
        self._version += 1
        now = self._wall()
        empty = Field(
            epoch=self._epoch,
            version=self._version,
            at_ms=round(1000 * now),
            pending=self._seldom("pending", 0.9, partial(self._waiting, now)),
            coordinator=self._identity(),
        )
        try:
            if self._reader is None:
                self._reader = self._open.enter_context(open_reader(self.folder))
            with self._reader.unmoved():
                return self._seen(self._reader, empty, now)
        except (CoordinatorError, sqlite3.Error):
            self.close()
            self._books = Books("")
            return empty

    def _identity(self) -> str:
        if not self._coordinator:
            with suppress(CredentialsError):
                public = read_public(self.folder)
                self._coordinator = "" if public is None else identity_of(public)
        return self._coordinator

    def _seldom(self, name: str, gap_s: float, make: Callable[[], T]) -> T:
        """Return what takes long to make, made again after `gap_s` at the earliest, and `SHARE`."""
        value, due = self._made.get(name, (None, -math.inf))
        began = time.monotonic()
        if began >= due:
            value = make()
            now = time.monotonic()
            self._made[name] = (value, now + max(gap_s, SHARE * (now - began)))
        return cast("T", value)

    def _seen(self, reader: Reader, empty: Field, now: float) -> Field:
        run = reader.run(self._run)
        if run.run_id != self._books.run_id:
            self._recipe = recipe_in(run.recipe)
            wait = None if self._recipe is None else self._recipe.rounds.max_wait_s
            self._books = Books(run.run_id, whole=self._whole, max_wait_s=wait)
            self._made.clear()
        books, status = self._books, RunStatus.read(self.folder)
        status = status if status is not None and status.run == run.run_id else None
        books.update(reader)
        self._hear(run.run_id)
        devices = self._devices(reader, run)
        found = self._seldom("alarms", 5.0, lambda: tuple(alarms(reader, status, now)))
        return structs.replace(
            empty,
            run=self._summary(reader, run, status),
            money=reader.balance(run.run_id),
            edges=self._edges(reader, run, devices),
            devices=devices,
            reach=books.reach,
            rounds=self._rounds(reader),
            last=books.last,
            running=books.running,
            alarms=found,
        )

    def _summary(self, reader: Reader, run: RunRow, status: RunStatus | None) -> RunSummary:
        """Return the run: its figures of a moment ago, and what it waits for now."""
        found = self._seldom("summary", 0.9, lambda: summarize(reader, run))
        done = sum(one.state == "done" for one in self._books.rounds.values())
        if len(self._books.rounds) < self._books.seen:
            done = max(done, found.rounds_done)
        now = structs.replace(
            found, rounds_done=done, ended_ms=run.ended_ms, reason=run.end_reason or ""
        )
        return now.waiting_as(status, self._wall())

    def _hear(self, run_id: str) -> None:
        """Read what edges say of devices, if that file is new."""
        at = -1
        with suppress(OSError):
            at = (self.folder / Known.FILE).stat().st_mtime_ns
        if at != self._heard_at:
            self._heard, self._heard_at = Known.read(self.folder) or Known(run=run_id), at

    def _edges(
        self, reader: Reader, run: RunRow, devices: tuple[DeviceCard, ...]
    ) -> tuple[EdgeCard, ...]:
        here = Counter(edge for device in devices for edge in device.edges)
        view = self._books.view
        budgets = [] if view is None else view.edge_budget.tolist()
        return tuple(
            EdgeCard(
                id=ident,
                name=row.label or ident[:8],
                index=at,
                devices=here[ident],
                budget_micro=budgets[at] if at < len(budgets) else 0,
                spent_micro=row.spent_micro,
                rent_micro=row.rent_micro,
                ordered=row.ordered,
                in_time=row.in_time,
                last_round=row.last_round,
                failed=row.failed,
            )
            for at, (ident, row) in enumerate(reader.edge_totals(run.run_id).items())
        )

    @property
    def _asks(self) -> bool:
        """Whether devices are asked for opinions."""
        return self._recipe is not None and self._recipe.opinions.mode != "off"

    def _devices(self, reader: Reader, run: RunRow) -> tuple[DeviceCard, ...]:
        view = self._books.view
        prices = [] if view is None else view.client_price.tolist()
        said: Mapping[int, float] = {}
        if self._asks:
            said = self._seldom(
                "opinions", 2.0, lambda: reader.evaluations.last_opinions(run.run_id)
            )
        return tuple(
            structs.replace(
                one,
                price_micro=prices[one.index] if one.index < len(prices) else 0,
                opinion=said.get(one.index),
                context=self._books.contexts.get(one.id, {}),
            )
            if one.index is not None
            else one
            for one in devices_of(reader, run, known=self._heard)
        )

    def _rounds(self, reader: Reader) -> tuple[RoundCard, ...]:
        books = self._books
        if not self._asks:
            return tuple(books.rounds.values())
        found = self._seldom("evaluated", 2.0, lambda: reader.evaluations.rows(books.run_id))
        evaluated = {one.round: one for one in found}
        return tuple(
            structs.replace(card, opinion=one.mean, volunteers=one.volunteered)
            if (one := evaluated.get(at))
            else card
            for at, card in books.rounds.items()
        )

    def _waiting(self, now: float) -> tuple[Waiting, ...]:
        """Return who asks to join the site, without the codes: all may see this."""
        try:
            return tuple(structs.replace(one, code="") for one in waiting(self.folder, now))
        except (CoordinatorError, sqlite3.Error, OSError):
            return ()


def waiting(folder: Path, now: float) -> tuple[Waiting, ...]:
    """Return who asks to join, with the codes.

    Raises:
        CoordinatorError, sqlite3.Error, OSError: The site cannot be read.
    """
    asking = (one for one in members_in(folder, now) if one.state == "pending")
    return tuple(msgspec.convert(one, Waiting, from_attributes=True) for one in asking)
