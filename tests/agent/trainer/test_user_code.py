"""An installed package's training code in a real trainer process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from fedagent_agent.trainer import client
from fedagent_agent.trainer.client import TrainerClient
from fedagent_agent.trainer.frames import (
    Failed,
    Job,
    Open,
    Opened,
    Refused,
    Reply,
    Train,
    Trained,
    encode_frame,
)
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe.text import task_bytes
from tests.fakes.links import eventually
from tests.fakes.trainer_bench import demo

_MODULE = """
import os
import subprocess
import sys
import time

def train(model, batches, ctx):
    for x, y in batches:
        loss, gradient = model.loss_and_gradient(x, y)
        for name, slope in gradient.items():
            model.weights[name] -= ctx.rate * slope
    ctx.report(loss=loss)
    print("a stray line on stdout")

def endless(model, batches, ctx):
    while True:
        time.sleep(0.01)

def reading(model, batches, ctx):
    sys.stdin.read()
    train(model, batches, ctx)

def _tell(pid):
    with open(os.environ["CHILD"], "w") as file:
        file.write(str(pid))

def starting(model, batches, ctx):
    _tell(subprocess.Popen(["sleep", "600"], close_fds=False, start_new_session=True).pid)
    train(model, batches, ctx)

def helped(model, batches, ctx):
    _tell(subprocess.Popen(["sleep", "600"]).pid)
    train(model, batches, ctx)

def stuck(model, batches, ctx):
    helped(model, batches, ctx)
    endless(model, batches, ctx)

def crashing(model, batches, ctx):
    helped(model, batches, ctx)
    os._exit(1)

def leaving(model, batches, ctx):
    starting(model, batches, ctx)
    os._exit(0)

def forking(model, batches, ctx):
    child = os.fork()
    if child == 0:
        os.setsid()
        time.sleep(600)
    _tell(child)
    os._exit(0)

def holding(model, batches, ctx):
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            os.set_inheritable(fd, True)
        except OSError:
            pass
    starting(model, batches, ctx)
    endless(model, batches, ctx)
"""
_NAMES = (
    "train", "endless", "reading", "starting", "leaving", "forking", "holding", "gone", "helped",
    "stuck", "crashing",
)  # fmt: skip
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


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pip would unpack, where the trainer process looks."""
    info = tmp_path / "site" / "my_package-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n")
    (info / "entry_points.txt").write_text(_ENTRIES)
    (tmp_path / "site" / "my_package.py").write_text(_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    return tmp_path


def _open(name: str) -> Open:
    task = task_bytes(demo(f"learner.name={name}"))
    return Open(job=1, task=task, stream="digits:start=80,rate=0.001", seed=0)


async def test_it_trains_and_a_loop_without_end_ends_with_its_process(installed: Path) -> None:
    (installed / "model").write_bytes(encode_tensors(create(demo().model).init(0)))
    trainer = TrainerClient(grace_s=0.3)
    train = Train(job=2, model=str(installed / "model"), out=str(installed / "out"))

    async def asked(job: Job) -> Reply:
        return await trainer.submit(job)

    try:
        assert isinstance(await asked(_open("my-package:train")), Opened)
        assert isinstance(await asked(train), Trained)
        assert isinstance(await asked(_open("my-package:endless")), Opened)
        asyncio.get_running_loop().call_later(0.5, trainer.cancel, 3)
        ended = await asked(Train(job=3, model=train.model, out=train.out))
        assert isinstance(ended, Failed)
        assert ended.reason == "cancelled"
        assert isinstance(await asked(_open("my-package:train")), Opened)
        assert isinstance(await asked(train), Trained)
        assert trainer.starts == 2
        refused = await asked(_open("my-package:other"))
        assert isinstance(refused, Refused)
        assert "install the package my-package" in refused.detail
        broken = await asked(_open("my-package:gone"))
        assert isinstance(broken, Refused)
        assert broken.detail.count("fix its package or uninstall it") == 1
    finally:
        await trainer.close()


@pytest.fixture
def holder(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a training writes the id of a process that it starts and that outlives it."""
    monkeypatch.setattr(client, "LAST_LINES_S", 0.1)
    child = installed / "child"
    yield child
    if child.exists():
        os.kill(int(child.read_text()), signal.SIGKILL)


async def _trains_anew(trainer: TrainerClient, train: Train) -> None:
    async with asyncio.timeout(600):
        assert isinstance(await trainer.submit(_open("my-package:train")), Opened)
        assert isinstance(await trainer.submit(replace(train, job=9)), Trained)


@pytest.mark.parametrize("starts", ["forking"])
async def test_what_it_starts_and_reads_keeps_no_other_training_waiting(
    starts: str, installed: Path, holder: Path
) -> None:
    """A process of its own holds the pipes of the trainer; stdin has the agent's requests."""
    (installed / "model").write_bytes(encode_tensors(create(demo().model).init(0)))
    trainer = TrainerClient(grace_s=0.3)
    train = Train(job=2, model=str(installed / "model"), out=str(installed / "out"))
    try:
        assert isinstance(await trainer.submit(_open("my-package:reading")), Opened)
        assert isinstance(await trainer.submit(train), Trained)
        assert isinstance(await trainer.submit(_open(f"my-package:{starts}")), Opened)
        async with asyncio.timeout(600):
            ended = await trainer.submit(replace(train, job=3))
        assert isinstance(ended, Failed)
        assert ended.reason == "died"
        await _trains_anew(trainer, train)
    finally:
        await trainer.close()


@pytest.mark.parametrize(
    ("learner", "ends"),
    [("stuck", "cancelled"), ("crashing", "died"), ("helped", "agent")],
)
async def test_what_a_learner_starts_ends_with_the_trainer(
    installed: Path, holder: Path, learner: str, ends: str
) -> None:
    (installed / "model").write_bytes(encode_tensors(create(demo().model).init(0)))
    trainer = TrainerClient()
    train = Train(job=2, model=str(installed / "model"), out=str(installed / "out"))
    try:
        assert isinstance(await trainer.submit(_open(f"my-package:{learner}")), Opened)
        if ends == "cancelled":
            asyncio.get_running_loop().call_later(1.0, trainer.cancel, train.job)
        reply = await trainer.submit(train)
        if learner == "helped":
            assert isinstance(reply, Trained)
        else:
            assert isinstance(reply, Failed)
            assert reply.reason == ends
        if ends == "agent":  # which is killed: the trainer's requests are at their end
            assert trainer._process is not None
            assert trainer._process.stdin is not None
            trainer._process.stdin.close()
        elif ends == "close":
            await trainer.close()
        await eventually(lambda: not psutil.pid_exists(int(holder.read_text())))
    finally:
        await trainer.close()
        holder.unlink()


async def test_a_trainer_is_given_up_although_somebody_holds_all_its_pipes(
    installed: Path, holder: Path
) -> None:
    (installed / "model").write_bytes(encode_tensors(create(demo().model).init(0)))
    trainer = TrainerClient(grace_s=0.1)
    train = Train(job=2, model=str(installed / "model"), out=str(installed / "out"))
    try:
        assert isinstance(await trainer.submit(_open("my-package:holding")), Opened)
        training = asyncio.create_task(trainer.submit(train))
        await eventually(lambda: holder.exists() and bool(holder.read_text()))
        trainer.cancel(train.job)
        async with asyncio.timeout(600):
            ended = await training
        assert isinstance(ended, Failed)
        assert ended.reason == "cancelled"
        await _trains_anew(trainer, train)
    finally:
        await trainer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell nobody of a parent's end")
async def test_a_trainer_in_mid_work_ends_with_an_agent_that_is_killed(installed: Path) -> None:
    (installed / "model").write_bytes(encode_tensors(create(demo().model).init(0)))
    train = Train(job=2, model=str(installed / "model"), out=str(installed / "out"))
    frames = [encode_frame(job).hex() for job in (_open("my-package:stuck"), train)]
    helper = installed / "child"
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, *frames], stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        trainer = int(agent.stdout.readline())
        await eventually(lambda: helper.exists() and bool(helper.read_text()))
        agent.kill()
    await eventually(lambda: not psutil.pid_exists(trainer))
    await eventually(lambda: not psutil.pid_exists(int(helper.read_text())))
