"""The start of an agent and its end: what cannot work is refused, and an idle one is small."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedagent_agent import daemon
from fedagent_agent.config import AgentConfig
from fedagent_agent.core.effects import Measured
from fedagent_agent.daemon import check_stream
from fedagent_agent.streams.spec import StreamError
from fedagent_node.effects import Emit
from fedagent_node.settings import SettingError
from fedagent_testbed.local import RoleProcess


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ("csv:{0}/nope.csv", "csv: .*/nope.csv: there is no such file; check the path"),
        ("csv:{0}/thin.csv", "csv: .*/thin.csv: line 1 has one column only"),
        ("csv:{0}/open.csv", "no complete line"),
        ("csv:~nobody-there/a.csv", "csv: .*/a.csv: there is no such file"),
        (f"csv:{{0}}/{'x' * 300}", "File name too long; check the path"),
        ("csv:{0}/pipe", "cannot be read twice; have it written to a file"),
        ("replay:~nobody-there/a.npz", "no such file"),
        ("replay:{0}/nope.npz", "no such file"),
        ("replay:{0}/empty.npz", "empty.npz: is empty; put samples into it"),
        ("replay:{0}/empty.npz,labels=1", "empty.npz: is empty; put samples into it"),
        ("digits:labels=77", "has no sample with these labels; choose other labels"),
        ("digits:part=5000/5000", "too few samples for part 5000 of 5000"),
        ("csv:{0}/there.csv,label=mood", "no column 'mood'"),
    ],
)
def test_what_is_not_there_is_found(tmp_path: Path, stream: str, words: str) -> None:
    (tmp_path / "there.csv").write_text("x,y\n1,2\n")
    (tmp_path / "open.csv").write_text("x,y")
    (tmp_path / "thin.csv").write_text("y\n1\n")
    os.mkfifo(tmp_path / "pipe")
    np.savez(tmp_path / "empty.npz", x=np.zeros((0, 4), np.float32), y=np.zeros(0, np.int64))
    with pytest.raises(StreamError, match=words):
        check_stream(stream.format(tmp_path))


def test_what_is_there_passes(tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("x,y\n1,2\n")
    streams = ("digits:labels=3+7,part=2/4", "mqtt://h/t?features=a&label=b")
    for stream in (*streams, f"csv:{tmp_path}/there.csv"):
        check_stream(stream)


def load(**change: object) -> AgentConfig:
    return AgentConfig.load(json.dumps({"data_dir": "here", "stream": "digits", **change}), {})


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"stream": None}, "stream"),
        ({"stream": "bogus:1"}, "stream"),
        ({"stream": "digits:rate=fast"}, "rate"),
        ({"stream": "mqtt://192.168.1.20/t?features=a&label=y"}, "mqtt"),
        ({"edges": ["nowhere"]}, "edges"),
        ({"broker": "auto"}, "broker"),
        ({"slow_s": -1}, "slow_s"),
        ({"held_out": "bogus:1"}, "held_out"),
        ({"held_out": "digits"}, "held_out"),
        ({"peers": ["A!"]}, "peers"),
        ({"position": [1e9, 0]}, "position"),
        ({"privacy": {"max_epsilon": -1}}, "privacy.max_epsilon"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_key(
    change: dict[str, object], key: str
) -> None:
    with pytest.raises(SettingError) as caught:
        load(**change)
    assert caught.value.key == key
    assert caught.value.hint


@pytest.mark.parametrize("end", [signal.SIGTERM, "stdin"])
def test_a_signal_and_the_end_of_stdin_end_it_cleanly(tmp_path: Path, end: object) -> None:
    config: dict[str, object] = {
        "data_dir": str(tmp_path / "d"),
        "stream": "digits",
        "discovery": "loopback",
        "json_events": True,
        "watch_parent": True,
        "edges": ["127.0.0.1:9"],
    }
    process = RoleProcess(name="one", role="agent", config=config, log=tmp_path / "one.log")
    process.wait("ready")
    if isinstance(end, signal.Signals):
        process.popen.send_signal(end)
    else:
        assert process.popen.stdin is not None
        process.popen.stdin.close()
    assert process.wait_exit() == 0
    process.close()


def test_an_idle_agent_is_small_and_loads_no_heavy_library(tmp_path: Path) -> None:
    """From its very first start, which makes the identity."""
    script = """
import asyncio, json, os, sys
from fedagent_agent.config import AgentConfig
from fedagent_agent.daemon import AgentDaemon

async def main():
    daemon = AgentDaemon(AgentConfig.load(sys.argv[1]))
    run = asyncio.ensure_future(daemon.run())
    await asyncio.sleep(1.0)
    names = ("numpy", "cryptography", "rich", "typer", "torch", "safetensors")
    loaded = [name for name in names if name in sys.modules]
    pss = [line for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")]
    print(json.dumps({"loaded": loaded, "pss_kb": int(pss[0].split()[1])}))
    daemon._shell.stop.set()
    await run

asyncio.run(main())
"""
    config: dict[str, object] = {
        "data_dir": str(tmp_path / "d"),
        "stream": "digits",
        "discovery": "loopback",
    }
    ended = subprocess.run(
        [sys.executable, "-c", script, json.dumps(config)], capture_output=True, check=True
    )
    said = json.loads(ended.stdout)
    assert said["loaded"] == ["cryptography"], "what signs"
    assert said["pss_kb"] < 60_000


async def test_an_order_has_a_device_that_rested_measured_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "MEASURE_S", 0.05)
    monkeypatch.setattr(daemon, "REST_S", 1e6)
    made: Any = daemon.AgentDaemon(AgentConfig(data_dir=str(tmp_path), stream="digits"))
    measured, core = list[Measured](), SimpleNamespace(urgent=lambda: False)
    of_shell = {"id": "me", "driver": SimpleNamespace(core=core), "receive": measured.append}
    made._shell = SimpleNamespace(**of_shell, spawn=lambda work, _: asyncio.ensure_future(work))
    made._trainer, made._measured_at = SimpleNamespace(pid=None), time.monotonic()
    made._measuring = asyncio.ensure_future(made._keep_measuring())
    await asyncio.sleep(0.2)
    assert not measured
    core.urgent = lambda: True
    made._show(Emit("ordered", {"run": "0", "round": 1, "edge": "e"}))
    await asyncio.sleep(0.4)
    made._measuring.cancel()
    assert len(measured) >= 4
