"""Commands that show a run: status, devices, why and the ledger, on what the store wrote."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fedagent_cli.read.runs import NOT_HELD_OUT, metric_line
from fedagent_coordinator.picture.status_files import DeviceBook, RunStatus
from fedagent_node.data_dir import hold_data_dir
from fedagent_protocol.messages import DeviceNote, EdgeStatus
from fedagent_task.scoring.measures import (
    ACCURACY,
    DEVICE_SCORE,
    LOSS,
    MAE,
    RMSE,
    TRAIN_ERROR,
    TRAIN_LOSS,
    Measure,
)
from tests.fakes.written_runs import RECIPE, write_run
from tests.typed import call, last_object


def test_status(home: Path) -> None:
    read = last_object(call(home, "status", "--json"))
    assert (read["rounds_done"], read["rounds_wanted"], read["accuracy"]) == (3, 3, 0.8)
    assert (read["spent_micro"], read["reserved_micro"], read["agents"]) == (3_000_000, 0, 2)
    assert read["ended"] is True
    assert read["running"] is False
    text = call(home, "status").stdout
    assert "3 of 3" in text
    assert "3 credits" in text
    assert "state     ended: all rounds are done" in text
    assert "privacy" not in text
    rows = last_object(call(home, "status", "--rounds", "2", "--json"))["rounds"]
    assert [(row["round"], row["in_time"]) for row in rows] == [(2, 1), (3, 1)]


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    first = write_run(tmp_path / "coordinator")
    second = write_run(tmp_path / "coordinator", rounds=1, end=False)
    rows = last_object(call(tmp_path, "status", "--all", "--json"))["runs"]
    assert [(row["run"], row["rounds_done"], row["accuracy"]) for row in rows] == [
        (second, 1, 0.6),
        (first, 3, 0.8),
    ]
    assert [(row["running"], row["reason"]) for row in rows] == [
        (False, ""),
        (False, "rounds"),
    ]
    lines = call(tmp_path, "status", "--all").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["run", second[:12], first[:12]]
    assert "not ended" in lines[1]
    assert "3 of 3" in lines[2]


def test_who_is_online_and_who_declines(tmp_path: Path) -> None:
    """Beside a coordinator: sessions, and reasons also of one that no round could have."""
    folder = tmp_path / "coordinator"
    run = write_run(folder, rounds=1, end=False)
    book = DeviceBook(folder, run)
    notes = (
        DeviceNote(agent="agent-a", software="fedagent 0.1.0", address="10.0.0.9"),
        DeviceNote(agent="agent-b", reason="12 % of charge"),
        DeviceNote(agent="agent-c", here=False, age_ms=1000, reason="it speaks protocol 2"),
    )
    book.note("edge-0", EdgeStatus(run=run, epoch="e" * 32, devices=notes), 1_000_000)
    book.write(0.0)
    RunStatus(run=run, edges_live=1).write(folder)
    with hold_data_dir(folder):
        read = last_object(call(tmp_path, "devices", "--json"))["devices"]
        table = call(tmp_path, "devices").stdout
        status = last_object(call(tmp_path, "status", "--json"))
        said = call(tmp_path, "status").stdout
    keys = ("id", "online", "edges", "address", "reason")
    assert [tuple(row[key] for key in keys) for row in read] == [
        ("agent-a", True, ["edge-0"], "10.0.0.9", ""),
        ("agent-b", True, ["edge-0"], "", "12 % of charge (reported by edge hall)"),
        ("agent-c", False, [], "", "it speaks protocol 2 (reported by edge hall)"),
    ]
    assert [row["seen_ms"] for row in read[2:]] == [999_000]
    assert (read[0]["index"], read[2]["index"], read[2]["ordered"]) == (0, None, 0)
    assert read[0]["context"] == {"upload_bps": 2e6, "battery": 0.8, "temperature_c": 51}
    for shown in ("hall", "days ago", "2 Mbit/s", "80%", "51"):
        assert shown in table
    assert "declines  agent-b: 12 % of charge (reported by edge hall)" in table
    assert (status["agents"], status["agents_live"]) == (3, 2)
    assert "agents    2 live of 3 seen" in said
    assert "declines  agent-b: 12 % of charge (reported by edge hall)" in said
    # Whoever was online when the coordinator was killed was so at least until then.
    read = last_object(call(tmp_path, "devices", "--json"))["devices"]
    written_ms = round(1000 * (folder / "devices.json").stat().st_mtime)
    assert [row["online"] for row in read] == [False] * 3
    assert [row["seen_ms"] for row in read] == [written_ms, written_ms, 999_000]


def test_status_of_a_run_that_waits_says_for_what_and_who_is_there(tmp_path: Path) -> None:
    """Known and live edges, and the reason, before any round."""
    folder = tmp_path / "coordinator"
    run = write_run(folder, rounds=0, end=False)
    RunStatus(run=run, waiting="edges", wanted=1).write(folder)
    with hold_data_dir(folder):
        read = last_object(call(tmp_path, "status", "--json"))
        assert (read["running"], read["waiting"]) == (True, "edges")
        assert (read["edges"], read["edges_live"]) == (1, 0)
        assert "waiting   for edges: 0 of 1" in call(tmp_path, "status").stdout
    read = last_object(call(tmp_path, "status", "--json"))
    assert (read["running"], read["waiting"], read["edges_live"]) == (False, None, None)


def test_a_device_that_declined_last_says_why(tmp_path: Path) -> None:
    write_run(tmp_path / "coordinator")
    database = sqlite3.connect(tmp_path / "coordinator" / "coordinator.db")
    database.executescript(
        "UPDATE clients SET last_status = 'declined', "
        "last_reason = 'schema: task wants 64, the stream has 12' WHERE idx = 1"
    )
    database.close()
    said = call(tmp_path, "status").stdout
    assert "declines  agent-b: schema: task wants 64, the stream has 12" in said
    assert "agents    2 seen" in said


@pytest.mark.parametrize(
    "command",
    [
        *("status", "status --all", "status --rounds 5", "status --page", "devices", "report"),
        *("ledger verify", "models list", "export --ledger l.csv"),
    ],
)
def test_no_run_is_one_line_and_exit_code_40(tmp_path: Path, command: str) -> None:
    done = call(tmp_path, *command.split(), "--json")
    assert done.returncode == 40
    assert done.stderr.count("\n") == 1
    assert last_object(done)["hint"]


def test_the_error_of_a_regression_stands_where_accuracy_does(tmp_path: Path) -> None:
    recipe = RECIPE.replace('"softmax", features = 64, classes = 10', '"linear", features = 64')
    recipe = recipe.replace("digits-test", "room.npz")
    write_run(tmp_path / "coordinator", recipe=recipe, metric="loss")
    read = last_object(call(tmp_path, "status", "--json"))
    assert (read["accuracy"], read["primary_metric"]) == (None, "rmse")
    assert read["metrics"].keys() == {"loss", "rmse"}
    assert "error     0.894 (rmse), loss 0.800" in call(tmp_path, "status").stdout
    shown = call(tmp_path, "status", "--rounds", "5").stdout
    assert "error" in shown.splitlines()[0]
    assert "accuracy" not in shown
    assert "error " in call(tmp_path, "status", "--all").stdout
    (model,) = last_object(call(tmp_path, "models", "list", "--json"))["models"]
    assert model["metrics"] == read["metrics"]


def test_status_and_help_load_nothing_heavy(home: Path) -> None:
    """They are typed on small devices: numpy alone would double what they take."""
    heavy = ["numpy", "cryptography", "rich", "zeroconf", "paho", "psutil", "asyncio"]
    heavy += ["matplotlib", "fedagent_coordinator.policies"]
    asked = "import sys; sys.argv[1:] = {}; from fedagent_cli.main import run\ntry: run()\n"
    asked += f"finally: print([name for name in {heavy} if name in sys.modules])"
    for words in (["--help"], ["status"], ["status", "--rounds", "2"]):
        line = [sys.executable, "-c", asked.format(words)]
        environment = {**os.environ, "FEDAGENT_HOME": str(home)}
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines()[-1] == "[]", done


CLASSES = (ACCURACY, LOSS, TRAIN_LOSS)
NUMBERS = (RMSE, MAE, LOSS, TRAIN_ERROR, TRAIN_LOSS)
TRAINED = {"train_error": 0.5, "train_loss": 0.125}


@pytest.mark.parametrize(
    ("measures", "metrics", "line"),
    [
        (CLASSES, TRAINED, "accuracy: not measured yet"),
        (CLASSES, {"accuracy": 0.9, "loss": 0.25, **TRAINED}, "accuracy: 0.900, loss 0.250"),
        (
            NUMBERS,
            {"rmse": 0.4, "mae": 0.3, "loss": 0.16, **TRAINED},
            "error: 0.400 (rmse), 0.300 (mae), loss 0.160",
        ),
        (
            NUMBERS[3:],
            TRAINED,
            f"error: 0.500 in training, loss 0.125; {NOT_HELD_OUT}",
        ),
        (
            (DEVICE_SCORE, TRAIN_LOSS),
            {"device_score": 0.75, **TRAINED},
            "score: 0.750 on the devices' new samples, training loss 0.125",
        ),
        (
            (),
            {},
            "accuracy: not measured: if neighbours decide, devices report neither score nor loss",
        ),
    ],
)
def test_one_line_says_how_good_a_model_is(
    measures: tuple[Measure, ...], metrics: dict[str, float], line: str
) -> None:
    assert ": ".join(metric_line(measures, metrics)) == line


def test_the_round_is_told_in_words_and_as_json(home: Path) -> None:
    text = call(home, "why", "agent-b").stdout
    assert "round 3: device agent-b was selected" in text
    assert "ordered in 3 rounds, in time in 0" in text
    read = last_object(call(home, "why", "agent-b", "--round", "2", "--json"))
    assert (read["round"], read["state"], read["never_delivering"]) == (2, "selected", False)
    assert [order["round"] for order in read["orders"]] == [2, 1]


def test_of_a_device_that_has_gone_it_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "coordinator"
    run = write_run(folder, rounds=1, end=False)
    book = DeviceBook(folder, run)
    notes = (DeviceNote(agent="agent-a"), DeviceNote(agent="agent-b", here=False, age_ms=1000))
    book.note("edge-0", EdgeStatus(run=run, epoch="e" * 32, devices=notes), 1_000_000)
    book.write(0.0)
    with hold_data_dir(folder):
        assert (
            "it has not been connected to any edge for" in call(tmp_path, "why", "agent-b").stdout
        )
        assert last_object(call(tmp_path, "why", "agent-b", "--json"))["away_s"] > 1000
        assert last_object(call(tmp_path, "why", "agent-a", "--json"))["away_s"] is None
        old = last_object(call(tmp_path, "why", "agent-b", "--round", "1", "--json"))
    ended = last_object(call(tmp_path, "why", "agent-b", "--json"))
    assert (old["away_s"], ended["away_s"]) == (None, None)


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
