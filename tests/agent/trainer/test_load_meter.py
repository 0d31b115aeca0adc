"""Arrival steps and the load limit: parts, blocks, waits, and what an update says of them."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.learners import create as create_learner
from fedagent_agent.learners import registry
from fedagent_agent.learners.base import Learner, StepResult
from fedagent_agent.trainer.load_meter import BLOCK_S, MARGIN, LoadMeter
from fedagent_agent.trainer.training import Trainer
from fedagent_task.models import create
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec
from tests.fakes.trainer_bench import TrainerBench, demo

MEMORY = "digits:start=1000,rate=0.000001"
"""A thousand samples at once, and then none."""


class Clock:
    """Two clocks that the test moves."""

    def __init__(self) -> None:
        self.wall = self.processor = 0.0
        self.waited: list[float] = []

    def meter(self, limit_s: float) -> LoadMeter:
        return LoadMeter(limit_s, lambda: self.wall, lambda: self.processor)

    def pause(self, _job: int, wait_s: float) -> bool:
        """Wait, as a training does that nobody cancels."""
        self.waited.append(wait_s)
        self.wall += wait_s
        return False

    def work(self, meter: LoadMeter, wall: float, processor: float = 0.0) -> None:
        with meter:
            self.wall += wall
            self.processor += processor


@given(
    st.floats(1e-7, 5e-3),
    st.integers(1, 100_000),
    st.floats(0.01, 0.2),
    st.floats(0.5, 2.0),
)
def test_blocks_keep_the_limit_for_any_speed(
    each_s: float, wanted: int, limit_s: float, processor: float
) -> None:
    clock = Clock()
    meter = clock.meter(limit_s)
    done = blocks = 0
    while done < wanted and (block := meter.block(wanted - done)):
        assert block == 1 or block * each_s * max(1.0, processor) <= BLOCK_S * 1.001
        clock.work(meter, block * each_s, block * each_s * processor)
        meter.did(block)
        done += block
        blocks += 1
        clock.wall += 1.0  # what is not inside `with` does not count
    one = each_s * max(1.0, processor)
    assert meter.iterations == done >= 1
    assert meter.spent_s == pytest.approx(done * one)
    most = (1 - MARGIN) * limit_s
    assert meter.spent_s <= max(most, one) + 1e-9
    assert done == wanted or most - meter.spent_s <= max(one, BLOCK_S) + 1e-9


# ------------------------------------------------------------------ in a training


class Timed:
    """A learner whose iterations take what the test says, whatever this machine does."""

    def __init__(self, learner: Learner, clock: Clock, each_s: float, beside: int) -> None:
        self.learner, self.clock = learner, clock
        self.each_s, self.beside = each_s, beside

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def step(self, iterations: int) -> StepResult:
        done = self.learner.step(iterations)
        self.clock.processor += done.iterations * self.each_s
        self.clock.wall += done.iterations * self.each_s * (1 + self.beside)
        return done


def timed(
    bench: TrainerBench,
    *sets: str,
    stream: str = MEMORY,
    clock: Clock | None = None,
    each_s: float = 0.001,
    beside: int = 0,
) -> TrainerBench:
    """Open a task of a machine where each iteration takes a millisecond of one processor."""
    clock = clock or Clock()
    trainer = Trainer(clock.pause, wall=lambda: clock.wall, processor=lambda: clock.processor)
    bench.on(trainer).opened(demo(*sets), stream)
    task = trainer._open
    assert task is not None
    task.learner = cast("Learner", Timed(task.learner, clock, each_s, beside))
    return bench


def test_arrivals_come_in_while_it_trains_and_waits_are_no_computation(
    bench: TrainerBench,
) -> None:
    clock, stream = Clock(), "digits:start=10,rate=500,buffer=100000"
    timed(bench, "learner.steps=5", "learner.step_s=0.1", stream=stream, clock=clock)
    reply = bench.trained(iterations=1)
    assert reply.stats.steps == 5
    assert clock.wall == pytest.approx(0.401)
    assert reply.train_s == pytest.approx(0.005)
    assert 150 < reply.stats.arrivals < 270  # ten, and those of four pauses
    assert reply.stats.arrivals == reply.offset == reply.stats.num_samples


# ------------------------------------------------------------------ the load limit


@pytest.mark.parametrize("beside", [2])
def test_the_load_limit_holds_also_beside_others(bench: TrainerBench, beside: int) -> None:
    clock = Clock()
    timed(bench, "learner.steps=4", clock=clock, each_s=0.002, beside=beside)
    for limit_s in (0.1, 0.2):
        began = clock.processor
        reply = bench.trained(iterations=1_000_000, load_limit_s=limit_s)
        assert reply.stats.limited
        # The device is loaded as long as the round lasts, whoever has the processor.
        assert 0.9 * limit_s < reply.train_s <= limit_s
        iterations = (clock.processor - began) / 0.002
        assert iterations * (1 + beside) == pytest.approx(reply.train_s / 0.002)


@pytest.mark.parametrize("name", registry.names())
@settings(max_examples=8)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_iterations_in_blocks_are_the_same_iterations(name: str, cuts: list[int]) -> None:
    """A block's size depends on the clock: what is learnt must not."""
    model = create(ModelSpec(kind="logistic", features=6))
    spec = LearnerSpec(name=name, batch=3, buffer=40, rate=0.05)
    x = np.random.default_rng(0).standard_normal((30, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    updates = []
    for blocks in ([sum(cuts)], cuts):
        learner = create_learner(model, spec, np.random.default_rng(5))
        learner.begin(model.init(1))
        learner.absorb(x, y)
        for block in blocks:
            learner.step(block)
        updates.append(learner.update())
    assert all(np.array_equal(updates[0][key], updates[1][key]) for key in updates[0])
