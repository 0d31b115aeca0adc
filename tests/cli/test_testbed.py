"""`fedagent testbed` as a person and as a program use it."""

import json
import subprocess
from pathlib import Path

import pytest

from tests import typed
from tests.fakes import stream_files

SHORT = ("--set", "rounds.count=4", "--set", "world.clients=8")


def fedagent(*arguments: str) -> subprocess.CompletedProcess[str]:
    return typed.fedagent("testbed", *arguments)


def test_compare_all_prints_and_plots(tmp_path: Path) -> None:
    plot = tmp_path / "all.svg"
    arguments = ("cocs-decisions", "--policies", "all", "--seeds", "2", "--jobs", "1")
    done = fedagent("compare", *arguments, *SHORT, "--plot", str(plot), "--json")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    record = json.loads(done.stdout)
    assert (record["recipe"], record["rounds"], record["seeds"]) == ("cocs-decisions", 4, [0, 1])
    assert {"adaptive", "linucb", "oracle", "rbcs-f"} <= set(record["policies"])
    assert "opinions" in record["skipped"]["quick-init-ucb"]
    for figures in record["policies"].values():
        utility = figures["utility"]
        assert len(utility["per_seed"]) == 2
        assert utility["mean"] == pytest.approx(sum(utility["per_seed"]) / 2)
        assert {
            "regret_oracle",
            "regret_oracle_p",
            "accuracy",
            "rounds_to_target",
            "seconds_per_round",
            "spent",
            "min_rate",
            "jain",
            "decision_ms",
        } <= set(figures)
    means = {name: one["utility"]["mean"] for name, one in record["policies"].items()}
    assert max(means, key=lambda name: means[name]) == "oracle"
    assert record["policies"]["oracle"]["regret_oracle"]["mean"] == 0
    drawn = plot.read_text("utf-8")
    assert drawn.startswith("<?xml")
    assert "cumulative utility" in drawn


def test_a_plot_that_fails_does_not_lose_the_figures(tmp_path: Path) -> None:
    plot = tmp_path / "a.svg"
    plot.symlink_to(tmp_path / "none" / "a.svg")
    arguments = ("run", "cocs-decisions", "--policy", "random", "--plot", str(plot))
    done = fedagent(*arguments, *SHORT, "--json")
    assert done.returncode == 2
    assert "cannot be written" in done.stdout + done.stderr
    record = json.loads(done.stdout.splitlines()[0])
    assert "random" in record["policies"]
    assert "plot" not in record


def test_streams_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream_files.write(tmp_path)
    monkeypatch.setenv("FEDAGENT_DATA", str(tmp_path))
    names = "primal-dual+budgeted-ucb,fixed-1+random"
    small = (*stream_files.SMALL, "learner.name=minibatch", "rounds.count=6")
    sets = [part for one in small for part in ("--set", one)]
    arguments = ("bas-a9a", "--policies", names, "--seeds", "2", "--jobs", "1")
    done = fedagent("compare", *arguments, *sets)
    assert done.returncode == 0, done.stderr
    head = done.stdout.splitlines()[0]
    assert all(word in head for word in ("latency s", "compute", "loss", "peak s", "in limit"))
    assert "within 0.005 of the least loss" in done.stdout
    one = json.loads(fedagent("run", "bas-a9a", "--json", *sets).stdout)
    assert list(one["policies"]) == ["primal-dual+budgeted-ucb"]


def test_worlds_are_compared() -> None:
    arguments = ("one", "middling", "--policies", "cocs,fastest", "--seeds", "2", "--jobs", "1")
    sets = ("--set", "rounds.count=8")
    done = fedagent("compare", *arguments, *sets)
    assert done.returncode == 0, done.stderr
    assert "mean share" in done.stdout
    assert "skipped fastest in one" in done.stdout
    record = json.loads(fedagent("compare", *arguments, *sets, "--json").stdout)
    assert list(record["worlds"]) == ["one", "middling"]


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (("run", "no-such-recipe"), "cocs-decisions", 2),
        (("run", "cocs-decisions", "--set", "world.radio.nose=1"), "radio.noise_dbm_hz", 2),
        (("run", "cocs-decisions", "--policy", "nobody"), "adaptive", 2),
        (("run", "bas-a9a", "--policy", "all"), "not a single pair", 2),
        (("compare", "one", "moon"), "moon", 2),
        (("compare", "cocs-decisions", "--plot", "no/such/x.svg"), "which is not a folder", 2),
        (("compare", "bas-a9a", "--plot", "x.svg"), "has no picture", 2),
        (("compare", "one", "two", "--plot", "x.svg"), "have no picture", 2),
        (("compare", "cocs-decisions", "--plot", "x.txt"), ".svg, .pdf or .png", 2),
        (("compare", "cocs-decisions", "--ray", "10.0.0.1:1"), "ray", 43),
        (("run", "gda-mnist", "--policy", "volunteers"), "needs neighbours", 2),
    ],
)
def test_what_can_be_fixed_is_one_line(arguments: tuple[str, ...], says: str, code: int) -> None:
    done = fedagent(*arguments, *SHORT, "--json")
    assert done.returncode == code, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    error = json.loads(done.stdout.splitlines()[-1])
    assert says in f"{error['error']} {error['hint']}"
    assert error["exit_code"] == code
