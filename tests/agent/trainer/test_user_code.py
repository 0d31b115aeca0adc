"""An installed package's training code in a real trainer process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from fedagent_agent.trainer import client
from fedagent_agent.trainer import frames as fr
from fedagent_agent.trainer.client import TrainerClient
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
    sys.stdin.read()
    for x, y in batches:
        loss, gradient = model.loss_and_gradient(x, y)
        for name, slope in gradient.items():
            model.weights[name] -= ctx.rate * slope
    ctx.report(loss=loss)
    print("a stray line on stdout")

def _start(**options):
    with open(os.environ["CHILD"], "w") as file:
        file.write(str(subprocess.Popen(["sleep", "600"], **options).pid))

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
    child = os.fork()
    if child == 0:
        time.sleep(600)
    with open(os.environ["CHILD"], "w") as file:
        file.write(str(child))
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
    """A trainer, a training for it, and the file with the process that the training starts."""

    client: TrainerClient
    train: fr.Train
    child: Path

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    @staticmethod
    def opening(name: str) -> fr.Open:
        task = task_bytes(demo(f"learner.name=my-package:{name}"))
        return fr.Open(job=1, task=task, stream="digits:start=80,rate=0.001", seed=0)

    async def trained(self, name: str) -> fr.Reply:
        assert isinstance(await self.client.submit(self.opening(name)), fr.Opened)
        async with asyncio.timeout(600):
            return await self.client.submit(self.train)

    async def cancelled(self, name: str) -> fr.Reply:
        training = asyncio.create_task(self.trained(name))
        await self.started()
        self.client.cancel(self.train.job)
        return await training

    async def started(self) -> None:
        await eventually(lambda: self.child.exists() and bool(self.child.read_text()))

    async def gone(self) -> None:
        await eventually(lambda: not psutil.pid_exists(int(self.child.read_text())))
        self.child.unlink()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """What pip would unpack, where the trainer process looks."""
    info = tmp_path / "site" / "my_package-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n")
    (info / "entry_points.txt").write_text(_ENTRIES)
    (tmp_path / "site" / "my_package.py").write_text(_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    monkeypatch.setattr(client, "LAST_LINES_S", 0.1)
    model = tmp_path / "model"
    model.write_bytes(encode_tensors(create(demo().model).init(0)))
    train = fr.Train(job=2, model=str(model), out=str(tmp_path / "out"))
    made = Rig(TrainerClient(grace_s=0.3), train, tmp_path / "child")
    yield made
    if made.child.exists():
        os.kill(int(made.child.read_text()), signal.SIGKILL)


async def test_it_trains_and_one_without_end_ends_with_all_that_it_started(rig: Rig) -> None:
    async with rig:
        assert isinstance(await rig.trained("train"), fr.Trained)
        ended = await rig.cancelled("stuck")
        assert isinstance(ended, fr.Failed)
        assert ended.reason == "cancelled"
        await rig.gone()
        rig.train = replace(rig.train, job=9)
        assert isinstance(await rig.trained("train"), fr.Trained)
        assert rig.client.starts == 2
        for name, hint in (
            ("other", "install the package my-package"),
            ("gone", "fix its package"),
        ):
            refused = await rig.client.submit(rig.opening(name))
            assert isinstance(refused, fr.Refused)
            assert hint in refused.detail


@pytest.mark.parametrize(
    ("learner", "ends"), [("crashing", "died"), ("forking", "died"), ("helped", "")]
)
async def test_what_a_learner_starts_ends_with_the_trainer(
    rig: Rig, learner: str, ends: str
) -> None:
    async with rig:
        reply = await rig.trained(learner)
        assert getattr(reply, "reason", "") == ends
        if not ends:
            await rig.client.close()
        await rig.gone()


async def test_a_trainer_is_given_up_although_somebody_holds_all_its_pipes(rig: Rig) -> None:
    async with rig:
        ended = await rig.cancelled("holding")
        assert isinstance(ended, fr.Failed)
        assert ended.reason == "cancelled"
        rig.train = replace(rig.train, job=9)
        assert isinstance(await rig.trained("train"), fr.Trained)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell nobody of a parent's end")
async def test_a_trainer_in_mid_work_ends_with_an_agent_that_is_killed(rig: Rig) -> None:
    async with rig:
        frames = [fr.encode_frame(job).hex() for job in (rig.opening("stuck"), rig.train)]
        with subprocess.Popen(
            [sys.executable, "-c", _KILLED, *frames], stdout=subprocess.PIPE
        ) as agent:
            assert agent.stdout is not None
            trainer = int(agent.stdout.readline())
            await rig.started()
            agent.kill()
        await eventually(lambda: not psutil.pid_exists(trainer))
        await rig.gone()
