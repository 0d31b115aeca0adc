"""The power goes at any write of a round."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fedagent_coordinator.books.mark import MARK, read_mark
from fedagent_coordinator.books.write import Books
from tests.fakes.power import Noted, left, noted
from tests.fakes.stored_runs import (
    MEMORY,
    begun,
    files_of,
    lay_down,
    play,
    small_plan,
    small_result,
    small_view,
)

PRICES = (100, 200, 300)
PLANS = [small_plan(small_view(number, PRICES)) for number in (1, 2, 3)]
RESULTS = [small_result(plan, {0, 2}) for plan in PLANS]
KEPT = (0, 512, 4096, 1 << 20)
"""Bytes of each write that was not synced: none, a sector, a page, all."""

Story = tuple[str, dict[str, bytes], list[Noted]]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A run, its files after round 1, and all that was written and promised up to round 3."""
    folder, log = tmp_path_factory.mktemp("power"), list[Noted]()
    with Books(folder) as store:
        run = begun(store).run_id
        play(store, run, PLANS[0], {0, 2})
    files = files_of(folder)
    with pytest.MonkeyPatch.context() as patch, noted(patch, log), Books(folder) as store:
        for plan, result in zip(PLANS[1:], RESULTS[1:], strict=True):
            store.reserve(run, plan, policy="random")
            log.append(Noted("promised", f"reserved {plan.round}"))
            assert store.settle(run, result)
            log.append(Noted("promised", f"settled {plan.round}"))
    return run, files, log


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder where a sync costs nothing."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("kept", KEPT)
def test_what_was_promised_outlives_a_power_cut_at_any_write(
    memory: Path, story: Story, kept: int, pytestconfig: pytest.Config
) -> None:
    run, files, log = story
    # At every third write for each kind of disk, which begin at other ones; all in `test-all`.
    step = 3 if pytestconfig.getoption("seeds") == 1 else 1
    assert {noted.kind for noted in log} == {"write", "truncate", "sync", "promised"}
    for end in range(1 + KEPT.index(kept) % step, len(log) + 1, step):
        folder = lay_down(memory / str(end), left(files, log[:end], kept))
        promised = {noted.name for noted in log[:end] if noted.kind == "promised"}
        try:
            _goes_on(folder, run, promised)
        except Exception as error:
            error.add_note(f"the power went after {log[end - 1].kind} {log[end - 1].name} ({end})")
            raise


def _goes_on(folder: Path, run: str, promised: set[str]) -> None:
    with Books(folder) as store:
        for plan, result in zip(PLANS[1:], RESULTS[1:], strict=True):
            state = store.read.round_state(run, plan.round)
            if f"settled {plan.round}" in promised:
                assert state == "done"
            elif f"reserved {plan.round}" in promised:
                assert state in ("open", "done")
            if state is None:
                store.reserve(run, plan, policy="random")
            assert store.settle(run, result) == (state != "done")
        balance = store.read.balance(run)
        assert (balance.reserved_micro, balance.settled_micro) == (0, 3 * (100 + 300))
        assert store.read.ledger.verify().problems == ()


def test_no_mark_that_was_synced_is_lost_after_a_kill_and_a_power_cut(memory: Path) -> None:
    log = list[Noted]()
    with Books(memory) as store:
        run = begun(store).run_id
        play(store, run, PLANS[0], {0, 2})
    synced, files = read_mark(memory / MARK), files_of(memory)
    with pytest.MonkeyPatch.context() as patch, noted(patch, log):
        with Books(memory) as store:
            store.reserve(run, PLANS[1], policy="random")  # of this, the mark is not synced
        with Books(memory) as store:
            assert store.settle(run, RESULTS[1])
    assert synced is not None
    for end in range(len(log) + 1):
        for kept in (0, 20):
            (memory / MARK).write_bytes(left(files, log[:end], kept)[MARK])
            mark = read_mark(memory / MARK)
            assert mark is not None
            assert mark.seq >= synced.seq, end
