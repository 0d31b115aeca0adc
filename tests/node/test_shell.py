"""What every process does around its core."""

import asyncio
import gc
import logging
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedagent_agent.config import AgentConfig
from fedagent_edge.core.clones import CLONED
from fedagent_node.effects import Warn
from fedagent_node.shell import WARNINGS_PER_S, Shell


async def test_work_that_an_end_overtakes_is_not_left_unawaited(tmp_path: Path) -> None:
    shell = Shell(
        AgentConfig(data_dir=str(tmp_path), stream="digits"), fatal=(), show=lambda _: None
    )

    async def begin() -> None:
        shell.spawn(asyncio.sleep(60), "sleeps")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        await shell.run(begin)
        gc.collect()
    assert [str(warning.message) for warning in said] == []


def test_what_is_said_once_is_logged_although_much_else_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = AgentConfig(data_dir=str(tmp_path), stream="digits")
    shell, counters = Shell(config, fatal=(), show=lambda _: None), Counter[str]()
    core = SimpleNamespace(core=SimpleNamespace(counters=counters))
    monkeypatch.setattr(shell, "_driver", core)
    monkeypatch.setattr("fedagent_node.shell.time.monotonic", lambda: 7.0)
    caplog.set_level(logging.WARNING)
    for i in range(int(WARNINGS_PER_S) + 3):
        shell._warn(Warn("a", f"came {i} times"))
    shell._warn(Warn("a", CLONED, once=True))
    assert len(caplog.messages) == WARNINGS_PER_S + 1
    assert caplog.messages[-1].endswith(CLONED)
    assert counters["not_logged"] == 3
