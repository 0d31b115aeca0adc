"""Whatever step a coordinator dies at, money and rounds come out exactly once."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fedagent_coordinator.books.store import Store
from fedagent_protocol.failpoints import VARIABLE
from tests.fakes.stored_runs import (
    Crash,
    CrashAt,
    begun,
    files_of,
    lay_down,
    rented_plan,
    small_result,
)

RESERVE = ("reserve.entries", "reserve.before-commit", "reserve.committed", "reserve.marked")
SETTLE = ("settle.half", "settle.before-commit", "settle.committed", "settle.marked")

CHILD = """
import sys
from contextlib import suppress
from pathlib import Path
from fedagent_coordinator.books.store import Store
from tests.fakes.stored_runs import begun, small_plan, small_result, small_view
with Store(Path(sys.argv[1])) as store:
    run = begun(store)
    for number in (1, 2):
        plan = small_plan(small_view(number, [100, 200, 300]))
        store.reserve(run.run_id, plan, policy="random")
        store.settle(run.run_id, small_result(plan, {0, 2}))
"""


@pytest.mark.parametrize("point", RESERVE + SETTLE)
def test_a_crash_at_any_point_leaves_the_round_ended_once(tmp_path: Path, point: str) -> None:
    checkpoint = CrashAt()
    store = Store(tmp_path / "a", checkpoint=checkpoint)
    run = begun(store)
    plan = rented_plan(1)
    result = small_result(plan, {0}, rent=250)
    checkpoint.name = point
    with suppress(Crash):
        store.reserve(run.run_id, plan, policy="random")
        store.settle(run.run_id, result)
    assert not checkpoint.name, "it has crashed there"
    left = files_of(tmp_path / "a")
    store.close()

    with Store(lay_down(tmp_path / "b", left)) as again:
        assert again.read.ledger.verify().problems == ()
        state = again.read.round_state(run.run_id, 1)
        expected = {
            "reserve.entries": None,
            "reserve.before-commit": None,
            "settle.committed": "done",
            "settle.marked": "done",
        }.get(point, "open")
        assert state == expected
        assert again.void_open_rounds(run.run_id, "restart") == ((1,) if state == "open" else ())
        if state is not None:
            assert not again.settle(run.run_id, result)
        balance = again.read.balance(run.run_id)
        assert balance.settled_micro == (350 if state == "done" else 0)
        assert balance.reserved_micro == 0
        assert again.read.progress(run.run_id).next_round == (1 if state is None else 2)
        assert again.read.ledger.verify().problems == ()


def test_a_killed_process_leaves_whole_books(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        env={**os.environ, VARIABLE: "settle.committed:kill@2"},
        check=False,
        timeout=600,
    )
    assert child.returncode == -signal.SIGKILL
    with Store(tmp_path) as store:
        run = store.read.run()
        store.void_open_rounds(run.run_id, "restart")
        report = store.read.ledger.verify()
        assert report.problems == ()
        assert report.granted_micro == report.free_micro + report.settled_micro
        states = [row.state for row in store.read.rounds(run.run_id)]
        assert "open" not in states
        assert report.settled_micro == 400 * states.count("done")
