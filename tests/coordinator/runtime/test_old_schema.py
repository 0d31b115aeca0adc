"""Databases of older releases: read beside, or after, whoever wrote them; resumed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

from fedagent_coordinator.errors import StoreDamagedError
from fedagent_coordinator.migrations import migrations
from fedagent_coordinator.old_schema import NEWEST
from fedagent_coordinator.reader import DATABASE, open_reader

from .harness import KilledError, Site, recipe, toy_edges
from .test_restart import check_history

_SINCE = ("extensions", "origins", "opinions", "volunteers", "judgements", "standardized")


def make_older(folder: Path) -> bytes:
    """Take from a database what came with opinions and later; return the file."""
    with closing(sqlite3.connect(folder / DATABASE)) as db:
        for table in _SINCE:
            db.execute("DROP TRIGGER IF EXISTS runs_end_once")
            db.execute(f"DROP TABLE {table}")
        db.execute("DELETE FROM _sqlite_migrations WHERE name >= 'm004'")
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (folder / DATABASE).read_bytes()


def test_the_newest_migration_is_the_one_that_readers_look_for() -> None:
    with closing(Database(memory=True)) as empty:
        assert migrations.pending(empty)[-1].name == NEWEST


def test_an_ended_run_of_an_older_release_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    given = recipe()
    site = Site(tmp_path, given, toy_edges(given))
    site.run()
    site.close()
    kept = make_older(tmp_path)
    with open_reader(tmp_path) as reader:
        run = reader.run()
        assert [row.state for row in reader.rounds(run.run_id)] == ["done"] * 4
        assert (reader.evaluations(run.run_id), reader.opinions(run.run_id)) == ([], [])
        assert reader.ledger.verify().balanced
    assert (tmp_path / DATABASE).read_bytes() == kept


def test_a_run_of_an_older_release_is_resumed_to_its_end(tmp_path: Path) -> None:
    given = recipe()
    first = Site(tmp_path, given, toy_edges(given), kill_at="settled", kill_hit=2)
    first._alive = lambda action: action()  # type: ignore[method-assign] # it is not started again
    with pytest.raises(KilledError):
        first.run()
    first.close()
    make_older(tmp_path)
    second = Site(tmp_path, given, toy_edges(given))
    second.run()
    check_history(second, 4)


def test_a_database_without_our_tables_is_still_named(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("CREATE TABLE other (a)")
        db.commit()
    with pytest.raises(StoreDamagedError, match="no such table"), open_reader(tmp_path) as reader:
        reader.run()
