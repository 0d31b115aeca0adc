"""Pairs of controls side by side: the same in any process, ranked by what the paper asks."""

import copy
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedagent_cli import command_line
from fedagent_cli.testbed.command import mount
from fedagent_task.errors import RecipeError
from fedagent_testbed.streaming.compare import MARGIN, StreamComparison, compare_streams
from fedagent_testbed.study import load_recipe

from .conftest import SMALL, small

commands = command_line.CommandGroup()
mount(commands, panel="")
NAMES = ("primal-dual+budgeted-ucb", "fixed-1+random")
SETS = [item for one in SMALL for item in ("--set", one)]


def timeless(comparison: StreamComparison) -> dict[str, object]:
    record = copy.deepcopy(comparison.record())
    for one in record["policies"].values():  # type: ignore[attr-defined] # JSON data
        del one["decision_ms"]
    return record


def test_two_processes_find_what_one_finds() -> None:
    one = compare_streams(small(), NAMES, seeds=2)
    two = compare_streams(small(), NAMES, seeds=2, jobs=2)
    assert timeless(one) == timeless(two)


def test_the_record_is_json_and_adds_up() -> None:
    record = json.loads(json.dumps(compare_streams(small(), NAMES, seeds=2).record()))
    assert set(record["policies"]) == set(NAMES)
    for one in record["policies"].values():
        parts = sum(one[key]["mean"] for key in ("compute_s", "transfer_s", "aggregate_s"))
        assert one["latency_s"]["mean"] == pytest.approx(parts)
        assert one["spent"]["mean"] <= record["budget"]
        assert len(one["final_loss"]["per_seed"]) == 2
        assert one["error"]["mean"] is None


def test_those_that_reach_the_best_loss_come_first_by_latency() -> None:
    found = compare_streams(small(), [*NAMES, "fixed-5+min-cost", "fixed-20+min-trans"], seeds=2)
    ranked = found.ranked()
    figures = {name: found.figures(name) for name in ranked}
    least = min(one["final_loss"].mean or 0.0 for one in figures.values())
    reaching = [n for n in ranked if (figures[n]["final_loss"].mean or 9) <= least + MARGIN]
    assert ranked[: len(reaching)] == reaching
    latency = [figures[name]["latency_s"].mean or 0.0 for name in reaching]
    assert latency == sorted(latency)


def test_other_worlds_and_names_are_refused() -> None:
    with pytest.raises(RecipeError, match="world"):
        compare_streams(load_recipe("cocs-decisions"), NAMES)
    with pytest.raises(RecipeError, match="ITERATIONS"):
        compare_streams(small(), ["adaptive"])
    with pytest.raises(RecipeError, match="'adaptive' is no ITERATIONS"):
        compare_streams(small(), "adaptive")
    with pytest.raises(ValueError, match="ask for 1 or more"):
        compare_streams(small(), NAMES, seeds=0)


def test_pandas_has_a_row_per_round() -> None:
    pytest.importorskip("pandas")
    found = compare_streams(small(), NAMES, seeds=2)
    rounds = sum(len(run) for runs in found.histories.values() for run in runs)
    assert len(found.to_pandas()) == rounds


def test_the_command_prints_and_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "bas.svg"
    arguments = [
        "testbed",
        "compare",
        "bas-a9a",
        "--policies",
        ",".join(NAMES),
        "--seeds",
        "2",
        "--jobs",
        "1",
    ]
    done = CliRunner().invoke(commands.group, [*arguments, "--plot", str(plot), *SETS])
    assert done.exit_code == 0, done.output
    head = done.stdout.splitlines()[0]
    assert all(word in head for word in ("latency s", "compute", "loss", "peak s", "in limit"))
    assert "within 0.005 of the least loss" in done.stdout
    assert "loss against rounds" in plot.read_text("utf-8")


def test_run_takes_one_pair_and_says_json() -> None:
    done = CliRunner().invoke(commands.group, ["testbed", "run", "bas-a9a", "--json", *SETS])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert list(record["policies"]) == ["primal-dual+budgeted-ucb"]
