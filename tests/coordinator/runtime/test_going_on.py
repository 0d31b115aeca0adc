"""A run that has ended goes on for more rounds: once, whatever crashes, within its budget."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedagent_coordinator.database.connection import DATABASE
from fedagent_coordinator.errors import RefusedOptionError
from fedagent_coordinator.runs import RunFinishedError
from fedagent_coordinator.store import Store

from .harness import Site, recipe, toy_edges
from .test_restart import check_history


def ended(folder: Path, *sets: str) -> str:
    """Bring a run of four rounds to its end; return its id."""
    given = recipe(*sets)
    site = Site(folder, given, toy_edges(given))
    site.run()
    run = site.store.run.run_id
    site.close()
    return run


def going_on(folder: Path, more: int, *sets: str, kill_at: str = "", kill_hit: int = 1) -> Site:
    given = recipe(*sets)
    return Site(
        folder, given, toy_edges(given), more_rounds=more, kill_at=kill_at, kill_hit=kill_hit
    )


def test_it_goes_on_with_its_id_its_ledger_its_model_and_what_it_learnt(tmp_path: Path) -> None:
    run = ended(tmp_path, "policy.name=cocs-paper")
    with Store(tmp_path) as store:
        last = store.read.models.last(run)
    site = going_on(tmp_path, 3, "policy.name=cocs-paper")
    opened = site.open()
    assert (opened.run.run_id, opened.run.resumed) == (run, True)
    assert last is not None
    assert opened.run.progress.model == last.digest
    site.close()
    site.run()
    assert site.done == "rounds"
    check_history(site, 7)
    with Store(tmp_path) as store:
        assert [one.run_id for one in store.read.runs()] == [run]
        assert store.read.rounds_of(store.read.run()) == 7


@pytest.mark.parametrize(
    ("point", "hit"),
    [
        ("extend.before-commit", 1),
        ("extend.committed", 1),
        ("extend.marked", 1),
        ("reserved", 1),
        ("settled", 2),
        ("ending", 1),
        ("reported-result", 1),
    ],
)
def test_a_start_with_the_option_that_is_repeated_after_a_crash_adds_nothing(
    tmp_path: Path, point: str, hit: int
) -> None:
    ended(tmp_path)
    site = going_on(tmp_path, 3, kill_at=point, kill_hit=hit)
    site.run()
    assert (site.kills, site.done) == (1, "rounds")
    check_history(site, 7)


def test_a_start_without_the_option_goes_on_to_the_new_end(tmp_path: Path) -> None:
    ended(tmp_path)
    site = going_on(tmp_path, 3)
    site.open()
    site.close()
    site.more_rounds = 0
    site.run()
    check_history(site, 7)
    with pytest.raises(RunFinishedError, match=r"after 7 rounds .*--more-rounds N.*--new-run"):
        site.open()
    site.more_rounds = 2
    site.done = ""
    site.run()
    check_history(site, 9)


def test_a_run_that_has_not_ended_gets_no_more_rounds(tmp_path: Path) -> None:
    given = recipe()
    site = Site(tmp_path, given, toy_edges(given))
    site.open()
    site.close()
    site.more_rounds = 3
    site.run()
    check_history(site, 4)


def test_without_a_run_of_this_recipe_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    ended(tmp_path)
    with pytest.raises(RefusedOptionError, match=r"--more-rounds: .*no run of this recipe.*--set"):
        going_on(tmp_path, 3, "rounds.deadline_s=2.5").open()
    with Store(tmp_path) as store:
        assert len(store.read.runs()) == 1


def test_the_budget_stays_what_it_was(tmp_path: Path) -> None:
    ended(tmp_path, "budget.total=15")
    site = going_on(tmp_path, 3, "budget.total=15")
    site.run()
    assert site.done == "budget"
    check_history(site, 5)
    site.more_rounds = 0
    with pytest.raises(RunFinishedError) as caught:
        site.open()
    assert "--new-run" in str(caught.value)
    assert "--more-rounds" not in str(caught.value)
    with Store(tmp_path) as store:
        assert store.read.balance(store.read.run().run_id).granted_micro == 15_000_000


def test_a_run_without_an_end_that_spent_its_budget_may_be_given_an_end(tmp_path: Path) -> None:
    ended(tmp_path, "rounds.count=0", "budget.total=15")
    site = going_on(tmp_path, 3, "rounds.count=0", "budget.total=15")
    store = site.open()
    assert store.run.recipe.rounds.count == store.run.progress.rounds_done + 3
    site.close()


def test_the_database_lets_no_run_that_ended_go_on_otherwise(tmp_path: Path) -> None:
    ended(tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        for change in ("ended_ms = NULL", "ended_ms = 5", "end_reason = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="extension"):
                db.execute(f"UPDATE runs SET {change}")
