"""The trainer as a real process: it trains, obeys, is killed, and comes back."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedagent_agent.trainer import frames as fr
from fedagent_agent.trainer.client import TrainerClient
from fedagent_agent.trainer.process import answer
from fedagent_agent.trainer.training import Trainer
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe.text import task_bytes
from tests.fakes.trainer_bench import demo

TASK = task_bytes(demo())
NUMBERS = itertools.count(1)


@dataclass
class Bench:
    """A client, and a training for it."""

    client: TrainerClient
    model: Path
    out: Path

    async def open(self, task: bytes, stream: str, **fields: Any) -> fr.Reply:
        request = fr.Open(job=next(NUMBERS), task=task, stream=stream, **{"seed": 0, **fields})
        reply = await self.client.submit(request)
        assert reply.job == request.job
        return reply

    def training(self, **fields: Any) -> fr.Train:
        files = {"model": str(self.model), "out": str(self.out)}
        return fr.Train(job=next(NUMBERS), **{**files, **fields})

    async def trains(self) -> fr.Trained:
        reply = await self.client.submit(self.training())
        assert isinstance(reply, fr.Trained), reply
        assert await asyncio.to_thread(_digest, self.out) == reply.digest
        return reply

    async def fails(self, **fields: Any) -> fr.Failed:
        reply = await self.client.submit(self.training(**fields))
        assert isinstance(reply, fr.Failed)
        return reply

    async def cancelled(self, **fields: Any) -> fr.Failed:
        request = self.training(**fields)
        training = asyncio.create_task(self.client.submit(request))
        await asyncio.sleep(0.05)
        self.client.cancel(request.job)
        reply = await training
        assert isinstance(reply, fr.Failed)
        assert (reply.job, reply.reason) == (request.job, "cancelled")
        return reply


Scenario = Callable[[Bench], Awaitable[None]]


def _run(folder: Path, scenario: Scenario, **options: Any) -> None:
    model = folder / "model"
    model.write_bytes(encode_tensors(create(demo().model).init(0)))

    async def run() -> None:
        client = TrainerClient(**options)
        try:
            async with asyncio.timeout(600):
                await scenario(Bench(client, model, folder / "update"))
        finally:
            await client.close()
        assert client.pid is None

    asyncio.run(run())


def on_a_client(**options: Any) -> Callable[[Scenario], Callable[[Path], None]]:
    """Make a test of a scenario with a client of its own."""
    return lambda scenario: lambda tmp_path: _run(tmp_path, scenario, **options)


def _digest(path: Path) -> str:
    return digest_of(path.read_bytes()) if path.exists() else "none"


async def _gone(pid: int) -> None:
    until = time.monotonic() + 600
    while psutil.pid_exists(pid):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


@on_a_client()
async def test_one_process_started_lazily_trains_round_after_round(bench: Bench) -> None:
    client = bench.client
    assert client.pid is None
    client.cancel(7)
    failed = await bench.fails()
    assert (failed.reason, failed.detail) == ("stream", "stream: no stream was opened")
    await bench.open(TASK, "digits:labels=0+1,rate=100000", seed=3)
    pid, offset = client.pid, 0
    for _ in range(3):
        reply = await bench.trains()
        assert reply.offset > offset
        offset = reply.offset
    narrow = task_bytes(demo("model.features=63"))
    assert isinstance(await bench.open(narrow, "digits"), fr.Refused)
    assert isinstance(await bench.open(TASK, "digits"), fr.Opened)
    await bench.trains()
    assert client.pid == pid


@on_a_client(grace_s=30)
async def test_a_cancelled_training_ends_between_iterations(bench: Bench) -> None:
    await bench.open(TASK, "digits:start=1000")
    await bench.cancelled(iterations=1_000_000)
    assert _digest(bench.out) == "none"
    await bench.trains()
    assert bench.client.starts == 1


ENDS: list[int] = []


@on_a_client(grace_s=0.1, on_end=lambda: ENDS.append(1))
async def test_who_does_not_obey_is_killed_and_comes_back_where_it_was(bench: Bench) -> None:
    await bench.open(TASK, "digits:rate=1000")
    first = await bench.trains()
    assert bench.client.pid is not None
    pid = bench.client.pid
    os.kill(pid, signal.SIGSTOP)
    await bench.cancelled(out=str(bench.out.with_name("other")))
    await _gone(pid)
    again = await bench.trains()
    assert (bench.client.starts, len(ENDS)) == (2, 1), "its end is told once"
    assert again.offset >= first.offset


@on_a_client(nice=12)
async def test_the_process_has_one_thread_ignores_ctrl_c_and_stays_behind(bench: Bench) -> None:
    await bench.open(TASK, "digits")
    pid, own = bench.client.pid, psutil.Process().nice()
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    await bench.trains()
    trainer = psutil.Process(pid)
    assert (trainer.num_threads(), bench.client.starts) == (1, 1)
    assert trainer.nice() == max(own, 12)
    assert psutil.Process().nice() == own


BIG = task_bytes(demo("learner.buffer=1000000"))
"""256 MB of samples."""


@on_a_client(memory_bytes=128 << 20)
async def test_a_task_over_the_memory_limit_fails_and_the_next_one_trains(bench: Bench) -> None:
    opened = await bench.open(BIG, "digits")
    assert isinstance(opened, fr.Failed)
    assert opened.reason == "memory"
    assert "raise --memory-limit" in opened.detail
    assert bench.client.pid is None
    reply = await bench.fails()
    assert reply.reason == "memory"
    await bench.open(TASK, "digits")
    await bench.trains()
    limit = psutil.Process(bench.client.pid).rlimit(psutil.RLIMIT_DATA)[0]
    assert 128 << 20 <= limit < 512 << 20
    await bench.open(TASK, "digits")
    assert bench.client.starts == 3


def test_an_unforeseen_error_tells_type_and_place_but_no_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Trainer):
        def answer(self, job: fr.Job) -> fr.Reply:
            raise ValueError(f"could not convert 'secret' of {job}")

    reply = answer(Broken(lambda _job, _wait: False), fr.Train(job=5, model="secret", out=""))
    assert isinstance(reply, fr.Failed)
    assert reply.reason == "error"
    assert reply.detail.startswith("ValueError at test_client.py:")
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text + reply.detail
