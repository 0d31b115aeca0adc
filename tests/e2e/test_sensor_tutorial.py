"""The tutorial "connect your own sensor", as it is written: topic, stream, recipe, model."""

import asyncio
import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedagent_node.broker import Broker, BrokerSpec
from fedagent_node.link import Link

from .terminals import Terminals, terminals, until

__all__ = ["terminals"]  # a fixture

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "sensor.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def command(start: str) -> str:
    """Return the page's line that starts so, without the program's name."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    line = next(line for line in lines if line.startswith(start))
    return line.removeprefix("fedagent ")


def room(outside: float, pump: float) -> float:
    """The law behind the example's messages."""
    return 14 + outside / 10 + pump / 8


class Sensor:
    """The page's loop, faster, and now and then broken."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.task = asyncio.create_task(self._speak())

    async def _speak(self) -> None:
        rng = np.random.default_rng(0)
        for number in itertools.count():
            outside, pump = float(rng.integers(-10, 20)), float(rng.integers(20, 80))
            said: dict[str, object] = {"outside": outside, "pump": pump}
            said["room"] = 900.0 if number % 10 == 0 else room(outside, pump)
            self.link.publish("home/boiler", json.dumps(said).encode())
            await asyncio.sleep(0.01)


def test_from_a_topic_to_a_trained_model(terminals: Terminals, tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(150):
            broker = Broker(BrokerSpec(data_dir=tmp_path / "sensors"))
            address = await broker.start()
            link = Link(
                address,
                client_id="sensor",
                on_arrivals=lambda _: None,
                on_state=lambda _: None,
            )
            await link.start()
            sensor = Sensor(link)
            try:
                await asyncio.to_thread(roles, str(address))
            finally:
                sensor.task.cancel()
                await link.stop()
                await broker.stop()

    def roles(address: str) -> None:
        terminals.start(command("fedagent edge start"))
        line = command("fedagent start --name boiler").replace("127.0.0.1:1883", address)
        agent = terminals.start(shlex.join(shlex.split(line)).replace("'", ""))
        until(agent, "edge_joined")
        faster = "--set learner.step_s=0.2 --set rounds.count=12"
        coordinator = terminals.start(f"{command('fedagent coordinator start')} {faster}")
        assert until(coordinator, "end")["rounds_done"] == 12
        assert coordinator.wait(60) == 0

    asyncio.run(run())
    assert terminals.call(command("fedagent rounds")).returncode == 0
    export = command("fedagent models export").replace("room.npz", str(tmp_path / "room.npz"))
    assert terminals.call(export).returncode == 0
    predict = next(block for block in blocks("python") if "room.npz" in block)
    done = subprocess.run(
        [sys.executable, "-c", predict],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=tmp_path,
    )
    degrees = float(done.stdout.removesuffix(" degrees\n"))
    assert degrees == pytest.approx(room(5.0, 50.0), abs=0.7)
