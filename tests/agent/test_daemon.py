"""The agent as a real process: how it ends, and how little of it an idle device has."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedagent_testbed.local import RoleProcess


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
