"""The ledger against a small oracle, through crashes and restarts (RELIABILITY L9)."""

import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedagent_coordinator.books.store import Store
from fedagent_coordinator.core.effects import Reserve, Settle
from fedagent_coordinator.errors import LedgerError
from tests.fakes.stored_runs import (
    MEMORY,
    Crash,
    CrashAt,
    begun,
    files_of,
    lay_down,
    small_plan,
    small_result,
    small_view,
)

TOTAL = 4000
POINTS = ("reserve.before-commit", "reserve.committed", "settle.half", "settle.committed")


@lru_cache(maxsize=4096)
def planned(number: int, prices: tuple[int, ...], budget: int) -> Reserve:
    return small_plan(small_view(number, prices, budgets=[budget]))


@lru_cache(maxsize=4096)
def ended(plan: Reserve, paid: frozenset[int]) -> Settle:
    return small_result(plan, paid)


class Oracle:
    """The same books as four numbers."""

    def __init__(self) -> None:
        self.free, self.settled, self.voided = TOTAL, 0, 0
        self.open: dict[int, list[int]] = {}
        self.ended: dict[int, str] = {}

    def reserve(self, number: int, prices: list[int]) -> None:
        self.free -= sum(prices)
        self.open[number] = prices

    def settle(self, number: int, paid: set[int]) -> None:
        for client, price in enumerate(self.open.pop(number)):
            if client in paid:
                self.settled += price
            else:
                self.voided += price
                self.free += price
        self.ended[number] = "done"

    def void(self) -> None:
        for number in list(self.open):
            self.settle(number, set())
            self.ended[number] = "void"


class SettledLookup(RuleBasedStateMachine):
    """Random rounds, crashes and restarts."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.copies = 0
        self.checkpoint = CrashAt()
        self.folder = self.root / "0"
        self.store = Store(self.folder, checkpoint=self.checkpoint)
        self.run_id = begun(self.store, total_micro=TOTAL).run_id
        self.oracle = Oracle()
        self.number = 0
        self.plan: Reserve | None = None

    @precondition(lambda self: not self.oracle.open)
    @rule(
        prices=st.lists(st.integers(0, 400), max_size=8),
        budget=st.integers(0, 1500),
        crash=st.sampled_from(("", "", *POINTS[:2])),
    )
    def reserve(self, prices: list[int], budget: int, crash: str) -> None:
        self.number += 1
        plan = planned(self.number, tuple(prices), budget)
        fits = sum(prices) <= min(budget, self.oracle.free)
        self.checkpoint.name = crash
        try:
            self.store.reserve(self.run_id, plan, policy="random")
        except LedgerError:
            assert not fits
        except Crash:
            self._reopen()
            if crash == "reserve.committed":
                self.oracle.reserve(self.number, prices)
            self._void()
        else:
            assert fits
            self.oracle.reserve(self.number, prices)
            self.plan = plan
        self.checkpoint.name = ""

    @precondition(lambda self: self.oracle.open)
    @rule(paid=st.sets(st.integers(0, 7)), crash=st.sampled_from(("", "", *POINTS[2:])))
    def settle(self, paid: set[int], crash: str) -> None:
        assert self.plan is not None
        result = ended(self.plan, frozenset(paid))
        self.checkpoint.name = crash
        try:
            assert self.store.settle(self.run_id, result)
        except Crash:
            self._reopen()
            if crash == "settle.committed":
                self.oracle.settle(self.plan.round, paid)
                assert not self.store.settle(self.run_id, result)
            self._void()
        else:
            self.oracle.settle(self.plan.round, paid)
            assert not self.store.settle(self.run_id, result)
        self.checkpoint.name = ""

    @rule()
    def crash_and_restart(self) -> None:
        self._reopen()
        self._void()

    @invariant()
    def the_oracle_agrees(self) -> None:
        balance = self.store.read.balance(self.run_id)
        reserved = sum(map(sum, self.oracle.open.values()))
        assert balance.free_micro == self.oracle.free
        assert balance.reserved_micro == reserved
        assert balance.settled_micro == self.oracle.settled
        assert balance.voided_micro == self.oracle.voided
        assert balance.granted_micro == TOTAL == self.oracle.free + reserved + self.oracle.settled

    def teardown(self) -> None:
        if hasattr(self, "store"):
            report = self.store.read.ledger.verify()
            assert report.problems == ()
            states = {r.round: r.state for r in self.store.read.rounds(self.run_id)}
            assert states == {**self.oracle.ended, **dict.fromkeys(self.oracle.open, "open")}
            self.store.close()
            shutil.rmtree(self.root)

    def _reopen(self) -> None:
        """Die without closing: only the bytes in the files survive."""
        files = files_of(self.folder)
        self.store.close()
        self.copies += 1
        self.folder = lay_down(self.root / str(self.copies), files)
        self.checkpoint = CrashAt()
        self.store = Store(self.folder, checkpoint=self.checkpoint)

    def _void(self) -> None:
        """What every restart does first."""
        assert self.store.void_open_rounds(self.run_id, "restart") == tuple(self.oracle.open)
        self.oracle.void()


TestBooks = SettledLookup.TestCase
TestBooks.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
