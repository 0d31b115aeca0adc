"""Opinions of a trainer: prequential, whatever happens and in whatever order."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from msgspec.structs import replace

from fedagent_agent.learners.gradient_descent import Minibatch
from fedagent_agent.trainer.frames import (
    Evaluate,
    Evaluated,
    Failed,
    Trained,
)
from fedagent_agent.trainer.scoring import Scorer
from fedagent_agent.trainer.training import Trainer
from fedagent_task.models import Inputs, Labels
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec, OpinionsSpec, TaskSpec
from tests.fakes.trainer_bench import TrainerBench

MODEL = ModelSpec(kind="softmax", features=1, classes=2)


def _task(window: int = 5, *, epsilon: float = 0.0, **learner: object) -> TaskSpec:
    spec = LearnerSpec(passes=1, buffer=1000, **learner)  # type: ignore[arg-type]  # by test
    opinions = OpinionsSpec(mode="report", window=window, epsilon=epsilon)
    return TaskSpec(model=MODEL, learner=spec, opinions=opinions)


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    file = tmp_path / "a.csv"
    file.write_text("x,label\n0,0\n")
    return file


def _more(csv: Path, *rows: int) -> None:
    with csv.open("a") as file:
        file.writelines(f"{row},{row % 2}\n" for row in rows)


class _Watch:
    """Which samples were scored for an opinion, and which were given to the learner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scored: list[int] = []
        self.learnt: list[int] = []
        add, absorb = Scorer.add, Minibatch.absorb

        def adding(scorer: Scorer, x: Inputs, y: Labels) -> None:
            ids = np.asarray(x)[:, 0].astype(int).tolist()
            assert not set(ids) & set(self.learnt), "scored after it was learnt from"
            self.scored += ids
            add(scorer, x, y)

        def absorbing(learner: Minibatch, x: Inputs, y: Labels) -> None:
            self.learnt += np.asarray(x)[:, 0].astype(int).tolist()
            absorb(learner, x, y)

        monkeypatch.setattr(Scorer, "add", adding)
        monkeypatch.setattr(Minibatch, "absorb", absorbing)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> _Watch:
    return _Watch(monkeypatch)


@pytest.mark.parametrize("seed", range(3))
def test_no_sample_is_scored_after_it_was_learnt_from_and_none_is_lost(
    bench: TrainerBench, csv: Path, watch: _Watch, seed: int
) -> None:
    rng, give_up = np.random.default_rng(seed), [False]
    task = _task(int(rng.integers(1, 8)), steps=int(rng.integers(1, 4)), rate=1e-9)
    bench.on(Trainer(lambda _job, _wait: give_up[0])).opened(task, f"csv:{csv}")
    rows, arrived, offset = 1, 0, 0
    for _ in range(60):
        what = rng.choice(["rows", "evaluate", "train", "cancelled"])
        if what == "rows":
            count = int(rng.integers(1, 12))
            _more(csv, *range(rows, rows + count))
            rows += count
        elif what == "evaluate":
            before = len(watch.scored)
            samples = bench.evaluated().samples
            assert samples == len(watch.scored) - before <= task.opinions.window
        else:
            give_up[0] = what == "cancelled"
            reply = bench.train()
            arrived += reply.stats.arrivals if isinstance(reply, Trained) else 0
    give_up[0] = False
    for _ in range(2):
        last = bench.trained()
        arrived, offset = arrived + last.stats.arrivals, last.offset
    assert watch.learnt == list(range(rows))
    assert (arrived, offset) == (rows, csv.stat().st_size)


def test_a_second_stream_is_primary_metric_and_never_learnt_from(
    bench: TrainerBench, csv: Path, watch: _Watch
) -> None:
    apart = csv.with_name("apart.csv")
    apart.write_text("x,label\n")
    _more(apart, *range(100, 107))
    bench.opened(_task(), f"csv:{csv}", held_out=f"csv:{apart}")
    for more in ((), (107,), ()):
        _more(apart, *more)
        assert bench.evaluated().samples == 5
    first, later = [102, 103, 104, 105, 106], [103, 104, 105, 106, 107]
    assert watch.scored == first + later * 2
    _more(csv, 1, 2)
    arrivals = bench.trained().stats.arrivals
    assert (watch.learnt, arrivals) == ([0, 1, 2], 3), "nothing waits for an opinion"


def test_an_opinion_of_nothing_has_no_samples_and_a_wrong_model_none(
    bench: TrainerBench, csv: Path
) -> None:
    csv.write_text("x,label\n0,7\n")
    ask = Evaluate(job=1, model=str(csv))
    for reason in ("not_open", "model"):
        failed = bench.trainer.answer(ask)
        assert isinstance(failed, Failed)
        assert failed.reason == reason
        bench.opened(_task(epsilon=1.0), f"csv:{csv}")
    assert bench.evaluated(job=1) == Evaluated(job=1, counters={"unfit": 1})


@pytest.mark.parametrize("mode", ["report", "peers"])
def test_where_neighbours_decide_an_update_tells_neither_loss_nor_score(
    bench: TrainerBench, csv: Path, mode: Literal["report", "peers"]
) -> None:
    asked = mode == "report"  # a task that asks in mode peers too is none
    bench.opened(replace(_task(), on_device=asked, opinions=OpinionsSpec(mode=mode)), f"csv:{csv}")
    _more(csv, *range(1, 8))
    assert bench.evaluated().samples == 8, "its own opinion it has"
    _more(csv, *range(9, 13))
    stats = bench.trained().stats
    assert (stats.loss > 0, stats.score > 0, stats.score_n > 0) == (asked,) * 3
