"""An installed package's training code in a real trainer process."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from fedagent_agent.trainer.client import TrainerClient
from fedagent_agent.trainer.frames import Failed, Job, Open, Opened, Refused, Reply, Train, Trained
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe import task_bytes
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

def leaving(model, batches, ctx):
    child = subprocess.Popen(["sleep", "600"])
    with open(os.environ["CHILD"], "w") as file:
        file.write(str(child.pid))
    os._exit(0)
"""
_NAMES = ("train", "endless", "reading", "leaving", "gone")
_ENTRIES = "[fedagent.learners]\n" + "".join(f"{name} = my_package:{name}\n" for name in _NAMES)


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
    client = TrainerClient(grace_s=0.3)
    train = Train(job=2, model=str(installed / "model"), out=str(installed / "out"))

    async def asked(job: Job) -> Reply:
        return await client.submit(job)

    try:
        assert isinstance(await asked(_open("my-package:train")), Opened)
        assert isinstance(await asked(train), Trained)
        assert isinstance(await asked(_open("my-package:endless")), Opened)
        endless = Train(job=3, model=train.model, out=train.out, timeout_s=0.5)
        ended = await asked(endless)
        assert isinstance(ended, Failed)
        assert ended.reason == "timeout"
        assert isinstance(await asked(_open("my-package:train")), Opened)
        assert isinstance(await asked(train), Trained)
        assert client.starts == 2
        refused = await asked(_open("my-package:other"))
        assert isinstance(refused, Refused)
        assert "install the package my-package" in refused.detail
        broken = await asked(_open("my-package:gone"))
        assert isinstance(broken, Refused)
        assert broken.detail.count("fix its package or uninstall it") == 1
    finally:
        await client.close()


async def test_what_it_starts_and_reads_keeps_no_other_training_waiting(installed: Path) -> None:
    """A process of its own holds the pipes of the trainer; stdin has the agent's requests."""
    (installed / "model").write_bytes(encode_tensors(create(demo().model).init(0)))
    client = TrainerClient(grace_s=0.3)
    try:
        assert isinstance(await client.submit(_open("my-package:reading")), Opened)
        train = Train(
            job=2, model=str(installed / "model"), out=str(installed / "out"), timeout_s=10.0
        )
        assert isinstance(await client.submit(train), Trained)
        assert isinstance(await client.submit(_open("my-package:leaving")), Opened)
        ended = await client.submit(replace(train, job=3))
        assert isinstance(ended, Failed)
        assert ended.reason == "died"
        async with asyncio.timeout(20):
            assert isinstance(await client.submit(_open("my-package:train")), Opened)
            assert isinstance(await client.submit(replace(train, job=4)), Trained)
    finally:
        await client.close()
        os.kill(int((installed / "child").read_text()), signal.SIGKILL)
