"""Opinions and sums of a trainer: prequential, and nothing is lost for learning."""

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
from msgspec import structs
from msgspec.structs import replace

from fedagent_agent.learners.gradient_descent import Minibatch
from fedagent_agent.streams.base import Samples, StreamSchema
from fedagent_agent.trainer import frames as fr
from fedagent_agent.trainer.frames import Evaluate, Evaluated, Failed
from fedagent_agent.trainer.scoring import Scorer
from fedagent_agent.trainer.training import Trainer
from fedagent_task.models import Inputs, Labels
from fedagent_task.moments import Moments
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec, OpinionsSpec, TaskSpec
from fedagent_task.recipe.text import frozen, task_of
from tests.agent.streams.support import install_stream
from tests.fakes.trainer_bench import TrainerBench, demo

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
            arrived += reply.stats.arrivals if isinstance(reply, fr.Trained) else 0
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
    ask = fr.Evaluate(job=1, model=str(csv))
    for reason in ("not_open", "model"):
        failed = bench.trainer.answer(ask)
        assert isinstance(failed, fr.Failed)
        assert failed.reason == reason
        bench.opened(_task(epsilon=1.0), f"csv:{csv}")
    assert bench.evaluated(job=1) == fr.Evaluated(job=1, counters={"unfit": 1})


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


SETS = ("model.features=2", "model.classes=2", "data.scale=1", "data.offset=0",
        "data.standardize=true", "evaluation.dataset='none'")  # fmt: skip
TASK = task_of(demo(*SETS))


def rows(count: int) -> tuple[list[tuple[float, float, int]], Moments]:
    rng = np.random.default_rng(count)
    x = rng.normal((101_325, 1e-3), (500, 1e-4), (count, 2))
    table = [(a, b, int(a > 101_325)) for a, b in x.tolist()]
    return table, Moments.of(x.astype(np.float32))


def measured(bench: TrainerBench) -> Evaluated:
    return bench.evaluated(model="", moments=True)


def scaled_by(found: Moments) -> TaskSpec:
    data = frozen(TASK.data, found.means(), found.deviations(), found.names or ())
    assert [one.name for one in data.features] == list(found.names or ("x1", "x2"))
    return structs.replace(TASK, data=data)


def test_a_file_is_added_up_exactly_and_then_learnt(bench: TrainerBench, tmp_path: Path) -> None:
    table, found = rows(120)
    path = tmp_path / "a.csv"
    path.write_text("p,t,y\n" + "".join(f"{a},{b},{y}\n" for a, b, y in table))
    bench.opened(TASK, f"csv:{path}")
    found = found.called(("p", "t"))
    for _ in range(2):  # again the same: nothing is used up by it
        reply = measured(bench)
        assert Moments.decode(reply.moments, features=2, most=1000) == found
        assert reply.samples == 120
    bench.opened(scaled_by(found), f"csv:{path}")
    assert bench.trained().stats.num_samples == 120


class Topic:
    """A stream without a past: what it gave once it does not give again."""

    waiting: ClassVar[list[tuple[float, float, int]]] = []

    def __init__(self, text: str) -> None:
        self.text = text

    def open(self, now: float) -> StreamSchema:
        return StreamSchema(2)

    def take(self, now: float) -> Samples:
        given, Topic.waiting = Topic.waiting, []
        x = np.array(given, np.float64).reshape(len(given), 3)
        return Samples(x[:, :2], x[:, 2].astype(np.int64))


def test_messages_that_come_once_are_not_lost(
    bench: TrainerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_stream(monkeypatch, "topic", Topic)
    bench.opened(TASK, "topic:x")
    assert measured(bench) == Evaluated(job=3, metric="moments"), "nothing yet"
    Topic.waiting, found = rows(40)
    assert measured(bench).samples == 40
    bench.opened(scaled_by(found), "topic:x")
    more, _ = rows(41)
    Topic.waiting = more[:5]
    assert bench.trained().stats.num_samples == 45
    update = bench.update()
    assert all(abs(tensor).max() < 5 for tensor in update.values()), "scaled when they were kept"


def test_a_number_that_no_sensor_says_is_refused(bench: TrainerBench, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,2,0\n1e30,2,1\n")
    bench.opened(TASK, f"csv:{path}")
    reply = bench.trainer.answer(Evaluate(job=2, model="", moments=True))
    assert isinstance(reply, Failed)
    assert (reply.reason, reply.detail) == ("stream", "a feature is over 1e+20")
    assert reply.offset == 0
