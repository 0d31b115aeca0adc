"""What is shown of the kept runs of RBCS-F and COCS, in small; and that pictures are of them."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bench import kept, paper_figures, paper_rows, paper_runs, papers, plots
from fedagent_testbed.study import load_recipe

CHECKPOINTS = np.array(paper_runs.CHECKPOINTS)
SMALL = (
    *("world.training.dataset=digits", "world.training.samples_per_client=30", "rounds.count=20"),
    "world.training.evaluate_every=10",
)


@dataclass
class Counted:
    label: str
    part: str = "some"
    played: int = 0

    def measure(self, seed: int) -> dict[str, object]:
        self.played += 1
        return {"wins": [seed]}


def test_what_the_file_holds_is_not_played_again(tmp_path: Path) -> None:
    path, jobs = tmp_path / "runs", [Counted("a"), Counted("b")]
    kept.play_missing(path, jobs[:1], range(2))
    kept.play_missing(path, jobs, range(3))
    assert [job.played for job in jobs] == [3, 3]
    found = kept.part(path, "some")
    assert {label: [run["wins"] for run in runs] for label, runs in found.items()} == {
        "a": [[0], [1], [2]],
        "b": [[0], [1], [2]],
    }
    assert kept.part(path, "other") == {}


def test_regret_is_what_the_oracle_has_more_on_the_same_seed() -> None:
    def runs(*ends: int) -> list[kept.Run]:
        return [{"seed": seed, "wins": [1, end]} for seed, end in enumerate(ends)]

    found = {"oracle-p, -166": runs(10, 20), "cocs, -166": runs(9, 16, 3)}
    assert paper_rows.regrets(found, "cocs", -166).tolist() == [[0, 1], [0, 4]]


def test_the_exponent_of_a_power_is_found_and_of_no_regret_none() -> None:
    power = 3.0 * CHECKPOINTS**0.8
    assert paper_rows.slope(np.array([power, 2 * power])) == pytest.approx(0.8)
    assert paper_rows.slope(power[None] - power[-1]) is None
    assert pytest.approx(4 / 5) == paper_rows.EXPONENT


def test_a_smaller_gamma_selects_less_evenly() -> None:
    recipe = load_recipe("rbcs-f-fashion", SMALL)
    told = [
        paper_runs.curve(paper_runs.drawn(recipe, paper_runs.shares(gamma, 40, 0), 0))
        for gamma in (0.1, 10.0, np.inf)
    ]
    evenness = [float(str(one["jain"])) for one in told]
    assert evenness == sorted(evenness)
    assert evenness[0] < 0.5
    assert evenness[-1] > 0.75
    assert all(one["round"] == [10, 20] and one["selected"] == 8 for one in told)


def test_accuracy_by_time_is_the_last_that_was_tested_by_then() -> None:
    run = {"round": [5, 10], "accuracy": [0.5, 0.7], "seconds": [40.0, 90.0]}
    assert paper_rows.by_time(run, (10, 40, 89, 90)) == {
        "10 s": None,
        "40 s": 0.5,
        "89 s": 0.5,
        "90 s": 0.7,
    }
    assert paper_rows.by_round(run, (5, 6)) == {"5 rounds": 0.5, "6 rounds": None}


@pytest.mark.parametrize("name", plots.KEPT)
def test_pictures_in_the_documents_are_of_the_kept_runs(name: str, tmp_path: Path) -> None:
    plots.write(name, paper_figures.FIGURES[name], tmp_path)
    told = json.loads((plots.IMAGES / "figures.json").read_text())
    assert json.loads((tmp_path / "figures.json").read_text())[name] == told[name]
    assert (plots.IMAGES / f"{name}.svg").exists()


@pytest.mark.parametrize("name", list(paper_runs.PARTS))
def test_every_part_is_kept_with_the_seeds_that_documents_show(name: str) -> None:
    jobs, seeds = paper_runs.PARTS[name]
    found = kept.part(papers.RUNS, name)
    assert {job.label: seeds for job in jobs()} == {
        label: len(runs) for label, runs in found.items()
    }
    assert list(paper_rows.rows(name, papers.RUNS))
