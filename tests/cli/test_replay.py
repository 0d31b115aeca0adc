"""`fedagent replay`, on a run in virtual time and on a directory without a run."""

import shutil
from pathlib import Path

import pytest

from fedagent_coordinator.books.write import Books
from fedagent_task.recipe.text import parse_recipe
from fedagent_testbed.world import VirtualFederation
from tests.typed import call, last_object
from tests.world.kinds import EACH, RECIPE


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("field")
    explores = ("policy.exploration=0.6", "policy.exploration_bound=100")
    sets = ("policy.name=random", "rounds.count=80", *EACH, "budget.per_edge=0.4", *explores)
    VirtualFederation(folder, parse_recipe(RECIPE, sets), seed=0, agents=8).run(seconds=3000)
    return folder


def test_the_recorded_policy_decides_what_was_recorded(field: Path) -> None:
    done = call(field, "replay", "--data-dir", str(field), "--check", "--json")
    read = last_object(done)
    assert read["rounds"] == read["same"] == 80
    other = call(field, "replay", "--data-dir", str(field), "--policy", "cheapest", "--check")
    assert (other.returncode, "first 1" in other.stderr) == (49, True)


def test_another_policy_is_estimated(field: Path) -> None:
    read = last_object(
        call(field, "replay", "--data-dir", str(field), "--policy", "round-robin", "--json")
    )
    found = read["estimate"]
    assert found["doubly_robust"]["low"] < found["doubly_robust"]["mean"]
    text = call(field, "replay", "--data-dir", str(field), "--policy", "round-robin").stdout
    assert "doubly robust" in text
    assert "95 % interval" in text


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        (("--policy", "nobody"), 2, "'nobody'"),
        (("--policy", "ucb"), 2, "needs opinions, which this run does not collect; take one"),
        (("--policy", "fair", "--set", "beta=x"), 2, "beta"),
        (("--policy", "fair", "--set", "beta"), 2, "--set KEY=VALUE"),
    ],
)
def test_a_wrong_wish_is_one_line(
    field: Path, arguments: tuple[str, ...], code: int, names: str
) -> None:
    done = call(field, "replay", "--data-dir", str(field), *arguments)
    assert (done.returncode, names in done.stderr) == (code, True)
    assert "oracle" not in done.stderr, "it is not offered: it cannot be replayed"
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_run_that_never_explored_refuses_an_estimate(home: Path) -> None:
    done = call(home, "replay", "--policy", "cheapest")
    assert done.returncode == 48
    assert "no estimate" in done.stderr
    assert "rounds decided by cheapest" in done.stdout
    assert call(home, "replay", "--policy", "cheapest", "--decisions").returncode == 0


def test_a_pruned_run_is_not_replayed(field: Path, tmp_path: Path) -> None:
    pruned = Path(shutil.copytree(field, tmp_path / "pruned"))
    (database,) = pruned.rglob("coordinator.db")
    with Books(database.parent) as store:
        (run,) = store.read.runs()
        assert store.prune(run.run_id, most=10, by="operator").rounds
    done = call(pruned, "replay", "--data-dir", str(pruned), "--policy", "cheapest")
    assert (done.returncode, "pruned" in done.stderr) == (43, True)
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("nowhere", "there is no folder nowhere; name the folder of"),
        ("report.html", "no run in report.html: it is not a coordinator's folder"),
    ],
)
def test_a_folder_without_a_run_is_said(home: Path, named: str, says: str) -> None:
    (home / "report.html").touch()
    done = call(home, "replay", "--data-dir", named)
    assert (done.returncode, says in done.stderr) == (40, True), done.stderr
