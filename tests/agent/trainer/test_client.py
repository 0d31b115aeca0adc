"""The trainer as a real process: it trains, obeys, is killed, and comes back."""

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fedagent_agent.trainer.client import TrainerClient, _log_lines
from fedagent_agent.trainer.frames import (
    Failed,
    Job,
    Open,
    Opened,
    Refused,
    Reply,
    Train,
    Trained,
)
from fedagent_agent.trainer.process import answer
from fedagent_agent.trainer.training import Trainer
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe import parse_recipe, task_bytes

ROOT = Path(__file__).parents[3]
RECIPE = parse_recipe((ROOT / "deploy" / "recipes" / "demo.toml").read_text())
TASK = task_bytes(RECIPE)
NUMBERS = itertools.count(1)
Scenario = Callable[[TrainerClient, Path, Path], Awaitable[None]]


def _run(
    folder: Path,
    scenario: Scenario,
    *,
    grace_s: float = 2.0,
    nice: int = 0,
    memory_bytes: int = 0,
    on_end: Callable[[], None] = lambda: None,
) -> None:
    model = folder / "model"
    model.write_bytes(encode_tensors(create(RECIPE.model).init(0)))

    async def run() -> None:
        client = TrainerClient(grace_s=grace_s, nice=nice, memory_bytes=memory_bytes, on_end=on_end)
        try:
            async with asyncio.timeout(120):
                await scenario(client, model, folder / "update")
        finally:
            await client.close()
        assert client.pid is None

    asyncio.run(run())


def _digest(path: Path) -> str:
    return digest_of(path.read_bytes()) if path.exists() else "none"


async def _gone(pid: int) -> None:
    until = time.monotonic() + 60
    while psutil.pid_exists(pid):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


async def _open(
    client: TrainerClient, task: bytes, stream: str, *, seed: int = 0, slow_s: float = 0.0
) -> Reply:
    request = Open(job=next(NUMBERS), task=task, stream=stream, seed=seed, slow_s=slow_s)
    reply = await client.submit(request)
    assert reply.job == request.job
    return reply


def _training(model: Path, out: Path, *, iterations: int = 0, timeout_s: float = 0.0) -> Train:
    return Train(
        job=next(NUMBERS),
        model=str(model),
        out=str(out),
        iterations=iterations,
        timeout_s=timeout_s,
    )


async def _cancelled(client: TrainerClient, request: Train) -> Failed:
    training = asyncio.create_task(client.submit(request))
    await asyncio.sleep(0.05)
    client.cancel(request.job)
    reply = await training
    assert isinstance(reply, Failed)
    assert (reply.job, reply.reason) == (request.job, "cancelled")
    return reply


async def _trains(client: TrainerClient, model: Path, out: Path) -> Trained:
    reply = await client.submit(_training(model, out))
    assert isinstance(reply, Trained), reply
    assert await asyncio.to_thread(_digest, out) == reply.digest
    return reply


def test_one_process_trains_round_after_round(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        opened = await _open(client, TASK, "digits:labels=0+1,rate=100000", seed=3)
        assert isinstance(opened, Opened)
        pid, offset = client.pid, 0
        for _ in range(3):
            reply = await _trains(client, model, out)
            assert reply.offset > offset
            offset = reply.offset
        assert (client.starts, client.pid) == (1, pid)

    _run(tmp_path, scenario)


def test_nothing_is_started_before_it_is_needed(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        assert client.pid is None
        client.cancel(7)
        request = _training(model, out)
        assert await client.submit(request) == Failed(
            job=request.job, reason="stream", detail="stream: none was opened"
        )

    _run(tmp_path, scenario)


def test_a_refusal_names_the_key_and_the_process_lives_on(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        narrow = task_bytes(
            parse_recipe((ROOT / "deploy/recipes/demo.toml").read_text(), ["model.features=63"])
        )
        reply = await _open(client, narrow, "digits")
        assert isinstance(reply, Refused)
        assert reply.key == "model.features"
        assert reply.detail == "model.features: task wants 63, the stream has 64"
        await _open(client, TASK, "digits")
        await _trains(client, model, out)
        assert client.starts == 1

    _run(tmp_path, scenario)


def test_a_cancelled_training_ends_between_iterations(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        await _open(client, TASK, "digits:start=1000")
        await _cancelled(client, _training(model, out, iterations=1_000_000))
        assert _digest(out) == "none"
        await _trains(client, model, out)
        assert client.starts == 1

    _run(tmp_path, scenario, grace_s=30)


def test_extra_seconds_are_waited_and_can_be_cancelled(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        await _open(client, TASK, "digits", slow_s=0.2)
        began = time.monotonic()
        await _trains(client, model, out)
        assert time.monotonic() - began >= 0.2
        await _open(client, TASK, "digits:rate=0.000001", slow_s=1000)
        assert (await _cancelled(client, _training(model, out))).offset == 50
        assert client.starts == 1

    _run(tmp_path, scenario, grace_s=30)


def test_who_does_not_obey_is_killed_and_comes_back_where_it_was(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        await _open(client, TASK, "digits:rate=1000")
        first = await _trains(client, model, out)
        assert client.pid is not None
        pid = client.pid
        os.kill(pid, signal.SIGSTOP)
        await _cancelled(client, _training(model, tmp_path / "other"))
        await _gone(pid)
        again = await _trains(client, model, out)
        assert client.starts == 2
        assert again.offset >= first.offset

    _run(tmp_path, scenario, grace_s=0.1)


def test_the_watchdog_kills_what_hangs(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        await _open(client, TASK, "digits", slow_s=1000)
        reply = await client.submit(_training(model, out, timeout_s=0.3))
        assert isinstance(reply, Failed)
        assert reply.reason == "timeout"
        assert client.pid is None

    _run(tmp_path, scenario)


def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        await _open(client, TASK, "digits:rate=1000")
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        reply = await client.submit(_training(model, out))
        if isinstance(reply, Failed):  # the request may have met the dying process
            assert reply.reason == "died"
            await _trains(client, model, out)
        assert client.starts == 2
        os.kill(client.pid, signal.SIGKILL)
        opened = await _open(client, TASK, "digits")
        assert isinstance(opened, Opened) or opened == Failed(job=opened.job, reason="died")

    _run(tmp_path, scenario)


def test_who_stops_waiting_leaves_no_training_behind(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        await _open(client, TASK, "digits", slow_s=1000)
        pid = client.pid
        assert pid is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.submit(_training(model, out)), 0.1)
        await _gone(pid)
        await _open(client, TASK, "digits")
        await _trains(client, model, out)
        assert client.starts == 2

    _run(tmp_path, scenario)


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    code = """
import asyncio, os, signal, sys
from fedagent_agent.trainer.client import TrainerClient
from fedagent_agent.trainer.frames import Open
async def run():
    client = TrainerClient()
    await client.submit(Open(job=1, task=bytes.fromhex(sys.argv[1]), stream="digits", seed=0))
    print(client.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(run())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, TASK.hex()],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    asyncio.run(_gone(int(done.stdout)))


def test_the_process_has_one_thread_and_ignores_ctrl_c(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        await _open(client, TASK, "digits")
        assert client.pid is not None
        os.kill(client.pid, signal.SIGINT)
        await _trains(client, model, out)
        assert psutil.Process(client.pid).num_threads() == 1
        assert client.starts == 1

    _run(tmp_path, scenario)


def test_the_process_stays_behind_the_devices_own_work(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        await _open(client, TASK, "digits")
        own = psutil.Process().nice()
        assert psutil.Process(client.pid).nice() == max(own, 12)
        await _trains(client, model, out)
        assert psutil.Process().nice() == own

    _run(tmp_path, scenario, nice=12)


BIG = task_bytes(
    parse_recipe(
        (ROOT / "deploy/recipes/demo.toml").read_text(),
        ["learner.buffer=1000000"],  # 256 MB of samples
    )
)


def test_a_task_over_the_memory_limit_fails_and_the_next_one_trains(tmp_path: Path) -> None:
    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        opened = await _open(client, BIG, "digits")
        assert isinstance(opened, Failed)
        assert opened.reason == "memory"
        assert "raise --memory-limit" in opened.detail
        assert client.pid is None
        reply = await client.submit(_training(model, out))
        assert isinstance(reply, Failed)
        assert reply.reason == "memory"
        await _open(client, TASK, "digits")
        await _trains(client, model, out)
        limit = psutil.Process(client.pid).rlimit(psutil.RLIMIT_DATA)[0]
        assert 128 << 20 <= limit < 512 << 20
        await _open(client, TASK, "digits")
        assert client.starts == 3

    _run(tmp_path, scenario, memory_bytes=128 << 20)


def test_a_training_over_the_memory_limit_is_failed_for_memory(tmp_path: Path) -> None:
    csv = tmp_path / "wide.csv"
    wide = parse_recipe(
        (ROOT / "deploy/recipes/demo.toml").read_text(),
        ["model.features=2000", "learner.name=sgd", "learner.buffer=16000", "data.dtype=float64"],
    )
    row = ",".join(["1"] * 2000)
    csv.write_text(f"{row},0\n" * 900)
    wide_model = tmp_path / "wide"
    wide_model.write_bytes(encode_tensors(create(wide.model).init(0)))

    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        await _open(client, task_bytes(wide), f"csv:{csv}")
        reply = await client.submit(_training(wide_model, out))
        assert isinstance(reply, Failed)
        assert reply.reason == "memory"
        assert _digest(out) == "none"

    _run(tmp_path, scenario, memory_bytes=48 << 20)


def test_every_end_of_the_process_is_told_once(tmp_path: Path) -> None:
    ends: list[int] = []
    told = asyncio.Event()

    async def scenario(client: TrainerClient, model: Path, out: Path) -> None:
        await _open(client, TASK, "digits:rate=1000")
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)  # between two trainings
        await _gone_child(client.pid)
        async with asyncio.timeout(60):
            await told.wait()
        await _trains(client, model, out)
        assert (len(ends), client.starts) == (1, 2)

    def ended() -> None:
        ends.append(1)
        told.set()

    _run(tmp_path, scenario, on_end=ended)
    assert len(ends) == 2


async def _gone_child(pid: int) -> None:
    until = time.monotonic() + 60
    with suppress(psutil.NoSuchProcess):  # it may be reaped between two looks
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)


def test_bytes_that_are_no_request_end_the_process_with_a_line() -> None:
    for data in (b"\xff\xff\xff\xff", b"\0\0\0\x01\xc1"):
        done = subprocess.run(
            [sys.executable, "-m", "fedagent_agent.trainer.process"],
            input=data,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 3
        assert done.stdout == b""
        assert b"the trainer ends" in done.stderr


def test_an_unforeseen_error_tells_type_and_place_but_no_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Trainer):
        def answer(self, job: Job) -> Reply:
            raise ValueError(f"could not convert 'secret' of {job}")

    reply = answer(Broken(lambda _job, _wait: False), Train(job=5, model="secret", out=""))
    assert isinstance(reply, Failed)
    assert reply.reason == "error"
    assert reply.detail.startswith("ValueError at test_client.py:")
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text + reply.detail


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (b"INFO fedagent_agent.trainer.scoring: scoring in numpy", logging.INFO),
        (b"CRITICAL fedagent_agent.trainer: ends", logging.CRITICAL),
        (b"Traceback (most recent call last):", logging.WARNING),
        (b"", logging.WARNING),
    ],
)
def test_what_the_process_logs_keeps_its_level(
    caplog: pytest.LogCaptureFixture, line: bytes, level: int
) -> None:
    async def run() -> None:
        program = f"import sys; sys.stderr.buffer.write({line!r} + b'\\n')"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stderr=subprocess.PIPE
        )
        await _log_lines(process)
        await process.wait()

    caplog.set_level(logging.INFO)
    asyncio.run(run())
    assert [(r.levelno, r.message) for r in caplog.records] == [
        (level, f"trainer: {line.decode()}")
    ]
