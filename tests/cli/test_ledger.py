"""`fedagent ledger`, on a directory that the real store wrote."""

import sqlite3
from pathlib import Path

from tests.fakes.written_runs import write_run
from tests.typed import call, last_object


def test_ledger_shows_and_exports(home: Path) -> None:
    read = last_object(call(home, "ledger", "show", "--last", "4", "--json"))
    assert {row["kind"] for row in read["entries"]} == {"reserve", "settle", "void"}
    assert call(home, "export", "--ledger", "l.csv").stdout == "l.csv: 13 entries\n"
    csv = (home / "l.csv").read_text().splitlines()
    assert csv[0].startswith("seq,")
    assert len(csv) == 1 + 1 + 3 * 4  # header, grant, and of two clients both steps of a round


def test_nobody_shows_micro_credits_to_people(home: Path) -> None:
    for words in (("devices",), ("ledger", "show"), ("status", "--rounds", "20")):
        assert "000000" not in call(home, *words).stdout
        assert "000000" in call(home, *words, "--json").stdout


def test_verify_finds_a_changed_amount(home: Path, tmp_path: Path) -> None:
    assert call(home, "ledger", "verify").stdout.startswith("balanced: 18 entries")
    write_run(tmp_path / "coordinator")
    database = sqlite3.connect(tmp_path / "coordinator" / "coordinator.db")
    database.executescript(
        "DROP TRIGGER entries_no_update; UPDATE entries SET amount_micro = 7 WHERE seq = 3"
    )
    database.close()
    done = call(tmp_path, "ledger", "verify", "--json")
    assert done.returncode == 41
    assert last_object(done)["ledger_balanced"] is False
    said = call(tmp_path, "ledger", "verify")
    assert said.returncode == 41
    assert "hash chain" in said.stderr
