"""Opinions of a trainer: prequential, whatever happens and in whatever order."""

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from msgspec.structs import replace

from fedagent_agent.learners.gradient_descent import Minibatch
from fedagent_agent.trainer.client import TrainerClient
from fedagent_agent.trainer.frames import (
    Evaluate,
    Evaluated,
    Failed,
    Open,
    Opened,
    Refused,
    Train,
    Trained,
)
from fedagent_agent.trainer.scoring import Scorer
from fedagent_agent.trainer.training import Trainer
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.models import Inputs, Labels, create
from fedagent_task.recipe import task_bytes
from fedagent_task.spec import LearnerSpec, ModelSpec, OpinionsSpec, TaskSpec

MODEL = ModelSpec(kind="softmax", features=1, classes=2)


Closing = Callable[[Trainer], Trainer]


@pytest.fixture
def closing() -> Iterator[Closing]:
    """Close a trainer's stream when the test is over."""
    with ExitStack() as stack:

        def later(trainer: Trainer) -> Trainer:
            stack.callback(trainer.close)
            return trainer

        yield later


def _task(window: int = 5, *, epsilon: float = 0.0, **learner: object) -> TaskSpec:
    spec = LearnerSpec(passes=1, buffer=1000, **learner)  # type: ignore[arg-type]  # by test
    opinions = OpinionsSpec(mode="report", window=window, epsilon=epsilon)
    return TaskSpec(model=MODEL, learner=spec, opinions=opinions)


def _files(folder: Path) -> tuple[Path, Path]:
    model, csv = folder / "model", folder / "a.csv"
    model.write_bytes(encode_tensors(create(MODEL).init(0)))
    csv.write_text("x,label\n0,0\n")
    return model, csv


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


@pytest.mark.parametrize("seed", range(12))
def test_no_sample_is_scored_after_it_was_learnt_from_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: Closing, seed: int
) -> None:
    watch, rng = _Watch(monkeypatch), np.random.default_rng(seed)
    model, csv = _files(tmp_path)
    give_up = [False]
    trainer = closing(Trainer(lambda _job, _wait: give_up[0]))
    task = _task(int(rng.integers(1, 8)), steps=int(rng.integers(1, 4)), rate=1e-9)
    opened = trainer.answer(Open(job=0, task=task_bytes(task), stream=f"csv:{csv}", seed=0))
    assert isinstance(opened, Opened)
    rows, arrived = 1, 0
    request = Train(job=1, model=str(model), out=str(tmp_path / "out"))
    for _ in range(60):
        what = rng.choice(["rows", "evaluate", "train", "cancelled"])
        if what == "rows":
            count = int(rng.integers(1, 12))
            with csv.open("a") as file:
                file.writelines(f"{rows + i},{(rows + i) % 2}\n" for i in range(count))
            rows += count
        elif what == "evaluate":
            before = len(watch.scored)
            reply = trainer.answer(Evaluate(job=2, model=str(model)))
            assert isinstance(reply, Evaluated)
            assert reply.samples == len(watch.scored) - before <= task.opinions.window
        else:
            give_up[0] = what == "cancelled"
            reply = trainer.answer(request)
            arrived += reply.stats.arrivals if isinstance(reply, Trained) else 0
    give_up[0], offset = False, 0
    for _ in range(2):
        last = trainer.answer(request)
        assert isinstance(last, Trained)
        arrived, offset = arrived + last.stats.arrivals, last.offset
    assert watch.learnt == list(range(rows))
    assert (arrived, offset) == (rows, csv.stat().st_size)


def test_what_arrives_after_an_opinion_waits_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: Closing
) -> None:
    watch = _Watch(monkeypatch)
    model, csv = _files(tmp_path)
    trainer = closing(Trainer(lambda _job, _wait: False))
    trainer.answer(Open(job=0, task=task_bytes(_task()), stream=f"csv:{csv}", seed=0))
    trainer.answer(Evaluate(job=1, model=str(model)))
    with csv.open("a") as file:
        file.write("1,1\n2,0\n")
    reply = trainer.answer(Train(job=2, model=str(model), out=str(tmp_path / "out")))
    assert isinstance(reply, Trained)
    assert (watch.learnt, reply.stats.arrivals, reply.stats.num_samples) == ([0], 3, 1)
    assert reply.offset < csv.stat().st_size
    reply = trainer.answer(Evaluate(job=3, model=str(model)))
    assert isinstance(reply, Evaluated)
    assert (reply.samples, watch.scored[1:]) == (2, [1, 2])
    reply = trainer.answer(Train(job=4, model=str(model), out=str(tmp_path / "out")))
    assert isinstance(reply, Trained)
    assert (watch.learnt, reply.stats.arrivals, reply.offset) == ([0, 1, 2], 0, csv.stat().st_size)


def test_a_second_stream_is_primary_metric_and_never_learnt_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: Closing
) -> None:
    watch = _Watch(monkeypatch)
    model, csv = _files(tmp_path)
    apart = tmp_path / "apart.csv"
    apart.write_text("x,label\n" + "".join(f"{i},{i % 2}\n" for i in range(100, 107)))
    trainer = closing(Trainer(lambda _job, _wait: False))
    ask = Open(job=0, task=task_bytes(_task()), stream=f"csv:{csv}", seed=0)
    assert isinstance(trainer.answer(replace(ask, held_out=f"csv:{apart}")), Opened)
    for more in ("", "107,1\n", ""):
        with apart.open("a") as file:
            file.write(more)
        reply = trainer.answer(Evaluate(job=1, model=str(model)))
        assert isinstance(reply, Evaluated)
        assert reply.samples == 5
    first, later = [102, 103, 104, 105, 106], [103, 104, 105, 106, 107]
    assert watch.scored == first + later * 2
    with csv.open("a") as file:
        file.write("1,1\n2,0\n")
    reply = trainer.answer(Train(job=2, model=str(model), out=str(tmp_path / "out")))
    assert isinstance(reply, Trained)
    assert (watch.learnt, reply.stats.arrivals) == ([0, 1, 2], 3), "nothing waits for an opinion"


def test_a_second_stream_that_does_not_fit_is_refused(tmp_path: Path, closing: Closing) -> None:
    _, csv = _files(tmp_path)
    trainer = closing(Trainer(lambda _job, _wait: False))
    ask = Open(job=0, task=task_bytes(_task()), stream=f"csv:{csv}", seed=0)
    reply = trainer.answer(replace(ask, held_out="digits"))
    assert isinstance(reply, Refused)
    assert reply.key == "model.features"
    assert isinstance(trainer.answer(Train(job=1, model="m", out="o")), Failed)
    assert isinstance(trainer.answer(ask), Opened)


def test_what_is_beyond_the_window_goes_on_to_the_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: Closing
) -> None:
    watch = _Watch(monkeypatch)
    model, csv = _files(tmp_path)
    csv.write_text("x,label\n" + "".join(f"{i},{i % 2}\n" for i in range(12)))
    trainer = closing(Trainer(lambda _job, _wait: False))
    trainer.answer(Open(job=0, task=task_bytes(_task(5)), stream=f"csv:{csv}", seed=0))
    for _ in range(2):
        reply = trainer.answer(Evaluate(job=1, model=str(model)))
        assert isinstance(reply, Evaluated)
        assert (reply.samples, reply.metric) == (5, "accuracy")
    assert watch.learnt == list(range(7))
    assert watch.scored == [7, 8, 9, 10, 11] * 2


def test_an_opinion_of_nothing_has_no_samples_and_a_wrong_model_none(
    tmp_path: Path, closing: Closing
) -> None:
    model, csv = _files(tmp_path)
    csv.write_text("x,label\n0,7\n")
    trainer = closing(Trainer(lambda _job, _wait: False))
    assert isinstance(trainer.answer(Evaluate(job=1, model=str(model))), Failed)
    trainer.answer(Open(job=0, task=task_bytes(_task(epsilon=1.0)), stream=f"csv:{csv}", seed=0))
    assert trainer.answer(Evaluate(job=1, model=str(model))) == Evaluated(
        job=1, counters={"unfit": 1}
    )
    reply = trainer.answer(Evaluate(job=1, model=str(csv)))
    assert isinstance(reply, Failed)
    assert reply.reason == "model"


def test_a_killed_process_reads_again_what_was_not_learnt_from(tmp_path: Path) -> None:
    model, csv = _files(tmp_path)
    csv.write_text("x,label\n" + "".join(f"{i},{i % 2}\n" for i in range(9)))

    async def kill(client: TrainerClient) -> None:
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        request = Evaluate(job=next(numbers), model=str(model))
        reply = await client.submit(request)
        if isinstance(reply, Failed):  # it was asked before the death was seen
            assert reply.reason == "died"
            reply = await client.submit(request)
        assert isinstance(reply, Evaluated)
        assert reply.samples == expected.pop(0)

    async def run() -> None:
        client = TrainerClient()
        try:
            async with asyncio.timeout(60):
                task = task_bytes(_task(50))
                await client.submit(Open(job=100, task=task, stream=f"csv:{csv}", seed=0))
                first = await client.submit(Evaluate(job=101, model=str(model)))
                assert isinstance(first, Evaluated)
                assert first.samples == 9
                await kill(client)
                out = str(tmp_path / "out")
                trained = await client.submit(Train(job=102, model=str(model), out=out))
                assert isinstance(trained, Trained)
                assert trained.stats.num_samples == 9
                await kill(client)
                with csv.open("a") as file:
                    file.write("9,1\n")
                await kill(client)
        finally:
            await client.close()

    expected, numbers = [9, 0, 1], itertools.count(1)
    asyncio.run(run())
    assert not expected


@pytest.mark.parametrize("mode", ["report", "peers"])
def test_where_neighbours_decide_an_update_tells_neither_loss_nor_score(
    tmp_path: Path, closing: Closing, mode: Literal["report", "peers"]
) -> None:
    model, csv = _files(tmp_path)
    trainer = closing(Trainer(lambda _job, _wait: False))
    asked = mode == "report"  # a task that asks in mode peers too is none
    spec = replace(_task(), on_device=asked, opinions=OpinionsSpec(mode=mode))
    trainer.answer(Open(job=0, task=task_bytes(spec), stream=f"csv:{csv}", seed=0))
    with csv.open("a") as file:
        file.writelines(f"{row},{row % 2}\n" for row in range(1, 8))
    evaluated = trainer.answer(Evaluate(job=1, model=str(model)))
    assert isinstance(evaluated, Evaluated)
    assert evaluated.samples == 8, "its own opinion it has"
    with csv.open("a") as file:
        file.writelines(f"{row},{row % 2}\n" for row in range(9, 13))
    trained = trainer.answer(Train(job=2, model=str(model), out=str(tmp_path / "out")))
    assert isinstance(trained, Trained)
    told = (trained.stats.loss > 0, trained.stats.score > 0, trained.stats.score_n > 0)
    assert told == (asked,) * 3
