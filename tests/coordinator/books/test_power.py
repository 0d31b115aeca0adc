"""The power goes at any write of a round, and of two processes one has the last credit."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fedagent_coordinator.books.queries import Queries
from fedagent_coordinator.books.rows import Balance
from fedagent_coordinator.books.store import Store
from fedagent_coordinator.errors import CoordinatorError
from tests.fakes.power import Keep, Noted, everything, left, noted, nothing, scattered, torn
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
KEEPS: dict[str, Keep] = {
    "nothing": nothing,
    "everything": everything,
    "torn at 512": torn(512),
    "torn at 4096": torn(4096),
    "scattered": scattered(14),
}

Story = tuple[str, dict[str, bytes], list[Noted]]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A run, its files after round 1, and all that was written and promised up to round 3."""
    folder, log = tmp_path_factory.mktemp("power"), list[Noted]()
    with Store(folder) as store:
        run = begun(store).run_id
        play(store, run, PLANS[0], {0, 2})
    files = files_of(folder)
    with pytest.MonkeyPatch.context() as patch, noted(patch, log), Store(folder) as store:
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


@pytest.mark.parametrize("kept", KEEPS)
def test_what_was_promised_outlives_a_power_cut_at_any_write(
    memory: Path, story: Story, kept: str, pytestconfig: pytest.Config
) -> None:
    run, files, log = story
    # At every third write for each kind of disk, which begin at other ones; all in `test-all`.
    step = 3 if pytestconfig.getoption("seeds") == 1 else 1
    assert {noted.kind for noted in log} == {"write", "truncate", "sync", "promised"}
    for end in range(1 + list(KEEPS).index(kept) % step, len(log) + 1, step):
        folder = lay_down(memory / str(end), left(files, log[:end], KEEPS[kept]))
        promised = {noted.name for noted in log[:end] if noted.kind == "promised"}
        try:
            _goes_on(folder, run, promised)
        except Exception as error:
            error.add_note(f"the power went after {log[end - 1].kind} {log[end - 1].name} ({end})")
            raise


def _goes_on(folder: Path, run: str, promised: set[str]) -> None:
    with Store(folder) as store:
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


RACES = 8


def _race(folder: Path, turn: Barrier) -> None:
    """Ask for the last credit of each race when the other has seen, too, that it is there."""

    def balance(self: Queries, run_id: str) -> Balance:
        found = seen(self, run_id)
        turn.wait(30)
        return found

    seen = Queries.balance
    Queries.balance = balance  # type: ignore[method-assign] # in a process of its own
    for race in range(RACES):
        with Store(folder / str(race)) as store:
            run = store.read.open_run()
            assert run is not None
            turn.wait(30)
            try:
                store.reserve(run.run_id, small_plan(small_view(1, [1])), policy="random")
                met = "won"
            except CoordinatorError as error:
                met = type(error).__name__
            turn.wait(30)
        (folder / f"{race}.{multiprocessing.current_process().name}").write_text(met)


def test_of_two_processes_that_reserve_the_last_credit_one_has_it(memory: Path) -> None:
    for race in range(RACES):
        with Store(memory / str(race)) as store:
            begun(store, total_micro=1)
    spawn = multiprocessing.get_context("spawn")
    turn = spawn.Barrier(2)
    racers = [spawn.Process(target=_race, args=(memory, turn), name=name) for name in "ab"]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
    for race in range(RACES):
        met = sorted((memory / f"{race}.{name}").read_text() for name in "ab")
        assert met == ["OvertakenError", "won"]
        with Store(memory / str(race)) as store:
            run = store.read.open_run()
            assert run is not None
            balance = store.read.balance(run.run_id)
            assert (balance.free_micro, balance.reserved_micro) == (0, 1)
            assert store.read.ledger.verify().problems == ()
