"""The trainer as a real process: it trains, obeys, comes back, and ends with what it started."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedagent_agent.trainer import client as client_module
from fedagent_agent.trainer import frames as fr
from fedagent_agent.trainer.client import TrainerClient
from fedagent_agent.trainer.process import answer
from fedagent_agent.trainer.training import Trainer
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe.text import task_bytes
from tests.fakes.links import eventually
from tests.fakes.trainer_bench import demo

TASK = task_bytes(demo())
NUMBERS = itertools.count(1)
_MODULE = """
import os
import subprocess
import sys
import time

def train(model, batches, ctx):
    sys.stdin.read()
    for x, y in batches:
        loss, gradient = model.loss_and_gradient(x, y)
        for name, slope in gradient.items():
            model.weights[name] -= ctx.rate * slope
    ctx.report(loss=loss)
    print("a stray line on stdout")

def _note(pid):
    with open(os.environ["CHILD"], "w") as file:
        file.write(str(pid))

def _start(**options):
    _note(subprocess.Popen(["sleep", "600"], **options).pid)

def helped(model, batches, ctx):
    _start()
    train(model, batches, ctx)

def stuck(model, batches, ctx):
    helped(model, batches, ctx)
    while True:
        time.sleep(0.01)

def crashing(model, batches, ctx):
    helped(model, batches, ctx)
    os._exit(1)

def forking(model, batches, ctx):
    if (child := os.fork()) == 0:
        time.sleep(600)
    _note(child)
    os._exit(1)

def holding(model, batches, ctx):
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            os.set_inheritable(fd, True)
        except OSError:
            pass
    _start(close_fds=False, start_new_session=True)
    while True:
        time.sleep(0.01)
"""
_NAMES = ("train", "holding", "gone", "helped", "stuck", "crashing", "forking")
_ENTRIES = "[fedagent.learners]\n" + "".join(f"{name} = my_package:{name}\n" for name in _NAMES)
_KILLED = """
import asyncio, sys
from fedagent_agent.trainer.client import TrainerClient
from fedagent_agent.trainer.frames import FrameBuffer, decode_request

async def run():
    client = TrainerClient()
    for frame in sys.argv[1:]:
        (body,) = FrameBuffer().feed(bytes.fromhex(frame))
        work = asyncio.create_task(client.submit(decode_request(body)))
        if client.pid is None:
            await work
            print(client.pid, flush=True)
    await work

asyncio.run(run())
"""


@dataclass
class Rig:
    """A client, files for its trainings, and the file with the process that a learner starts."""

    folder: Path
    client: TrainerClient

    @property
    def out(self) -> Path:
        return self.folder / "update"

    @property
    def child(self) -> Path:
        return self.folder / "child"

    def opening(self, name: str) -> fr.Open:
        task = task_bytes(demo(f"learner.name=my-package:{name}"))
        return fr.Open(job=next(NUMBERS), task=task, stream="digits:start=80,rate=0.001", seed=0)

    async def open(self, task: bytes, stream: str = "digits") -> fr.Reply:
        return await self.client.submit(
            fr.Open(job=next(NUMBERS), task=task, stream=stream, seed=0)
        )

    def training(self, **fields: Any) -> fr.Train:
        files = {"model": str(self.folder / "model"), "out": str(self.out)}
        return fr.Train(job=next(NUMBERS), **{**files, **fields})

    async def trains(self) -> fr.Trained:
        reply = await self.client.submit(self.training())
        assert isinstance(reply, fr.Trained), reply
        assert digest_of(self.out.read_bytes()) == reply.digest
        return reply

    async def fails(self, reason: str) -> fr.Failed:
        reply = await self.client.submit(self.training())
        assert isinstance(reply, fr.Failed)
        assert reply.reason == reason
        return reply

    async def cancelled(self, *, started: bool = False, **fields: Any) -> None:
        """Cancel a training; where asked, only when its learner has started something."""
        request = self.training(**fields)
        training = asyncio.create_task(self.client.submit(request))
        await (self.started() if started else asyncio.sleep(0.05))
        self.client.cancel(request.job)
        reply = await training
        assert isinstance(reply, fr.Failed)
        assert (reply.job, reply.reason) == (request.job, "cancelled")

    async def started(self) -> None:
        await eventually(lambda: self.child.exists() and bool(self.child.read_text()))

    async def gone(self) -> None:
        await eventually(lambda: not psutil.pid_exists(int(self.child.read_text())))
        self.child.unlink()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's file, and what pip would unpack, where the trainer process looks."""
    info = tmp_path / "site" / "my_package-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n")
    (info / "entry_points.txt").write_text(_ENTRIES)
    (tmp_path / "site" / "my_package.py").write_text(_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    monkeypatch.setattr(client_module, "LAST_LINES_S", 0.1)
    (tmp_path / "model").write_bytes(encode_tensors(create(demo().model).init(0)))
    return tmp_path


@asynccontextmanager
async def rig(folder: Path, **options: Any) -> AsyncIterator[Rig]:
    made = Rig(folder, TrainerClient(**options))
    try:
        async with asyncio.timeout(600):
            yield made
    finally:
        await made.client.close()
        if made.child.exists():
            os.kill(int(made.child.read_text()), signal.SIGKILL)
    assert made.client.pid is None


async def test_one_process_trains_round_after_round_behind_everything_else(folder: Path) -> None:
    async with rig(folder, grace_s=30, nice=12) as it:
        it.client.cancel(7)
        assert (await it.fails("stream")).detail == "stream: no stream was opened"
        assert not it.client.starts, "it is started lazily"
        await it.open(TASK, "digits:labels=0+1,rate=100000")
        pid, offset, own = it.client.pid, 0, psutil.Process().nice()
        assert pid is not None
        os.kill(pid, signal.SIGINT)  # what Ctrl-C means, the agent decides
        for _ in range(2):
            reply = await it.trains()
            assert reply.offset > offset
            offset = reply.offset
        assert (psutil.Process(pid).num_threads(), psutil.Process(pid).nice()) == (1, max(own, 12))
        assert psutil.Process().nice() == own
        narrow = task_bytes(demo("model.features=63"))
        assert (await it.open(narrow)).reason == "schema"  # type: ignore[union-attr]  # or it fails
        assert isinstance(await it.open(TASK, "digits:start=1000"), fr.Opened)
        it.out.unlink()
        await it.cancelled(iterations=1_000_000)
        assert not it.out.exists(), "it ends between iterations"
        await it.trains()
        assert (it.client.pid, it.client.starts) == (pid, 1)


async def test_who_does_not_obey_is_killed_and_comes_back_where_it_was(folder: Path) -> None:
    ends: list[int] = []
    async with rig(folder, grace_s=0.1, on_end=lambda: ends.append(1)) as it:
        await it.open(TASK, "digits:rate=1000")
        first, pid = await it.trains(), it.client.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await it.cancelled(out=str(folder / "other"))
        await eventually(lambda: not psutil.pid_exists(pid))
        again = await it.trains()
        assert (it.client.starts, len(ends)) == (2, 1), "its end is told once"
        assert again.offset >= first.offset


async def test_a_task_over_the_memory_limit_fails_and_the_next_one_trains(folder: Path) -> None:
    async with rig(folder, memory_bytes=128 << 20) as it:
        opened = await it.open(task_bytes(demo("learner.buffer=1000000")))  # 256 MB of samples
        assert isinstance(opened, fr.Failed)
        assert opened.reason == "memory"
        assert "raise --memory-limit" in opened.detail
        assert it.client.pid is None
        await it.open(TASK)
        await it.trains()
        limit = psutil.Process(it.client.pid).rlimit(psutil.RLIMIT_DATA)[0]
        assert 128 << 20 <= limit < 512 << 20


async def test_a_packages_loop_trains_and_one_without_end_ends_with_all_that_it_started(
    folder: Path,
) -> None:
    async with rig(folder, grace_s=0.3) as it:
        await it.client.submit(it.opening("train"))
        await it.trains()
        await it.client.submit(it.opening("stuck"))
        await it.cancelled(started=True)
        await it.gone()
        await it.client.submit(it.opening("train"))
        await it.trains()
        assert it.client.starts == 2
        for name, hint in (("other", "the package my-package"), ("gone", "fix its package")):
            refused = await it.client.submit(it.opening(name))
            assert isinstance(refused, fr.Failed)
            assert hint in refused.detail


@pytest.mark.parametrize("learner", ["crashing", "forking", "helped"])
async def test_what_a_learner_starts_ends_with_the_trainer(folder: Path, learner: str) -> None:
    async with rig(folder, grace_s=0.3) as it:
        await it.client.submit(it.opening(learner))
        if learner == "helped":
            await it.trains()
            await it.client.close()
        else:
            await it.fails("died")
        await it.gone()


async def test_a_trainer_is_given_up_although_somebody_holds_all_its_pipes(folder: Path) -> None:
    async with rig(folder, grace_s=0.3) as it:
        await it.client.submit(it.opening("holding"))
        await it.cancelled(started=True)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell nobody of a parent's end")
async def test_a_trainer_in_mid_work_ends_with_an_agent_that_is_killed(folder: Path) -> None:
    async with rig(folder) as it:
        frames = [fr.encode_frame(job).hex() for job in (it.opening("stuck"), it.training())]
        command = [sys.executable, "-c", _KILLED, *frames]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:
            assert agent.stdout is not None
            trainer = int(agent.stdout.readline())
            await it.started()
            agent.kill()
        await eventually(lambda: not psutil.pid_exists(trainer))
        await it.gone()


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
