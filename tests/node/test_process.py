"""A role's process: its files, its memory, its log, and the work around its core."""

import asyncio
import logging
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedagent_agent.config import AgentConfig
from fedagent_node.broker.embedded import MAX_CONNECTIONS, OTHER_DESCRIPTORS
from fedagent_node.effects import CLONED, Warn
from fedagent_node.settings import NodeConfig
from fedagent_node.shell import WARNINGS_PER_S, Shell

ROLE = """
import resource, sys
from types import SimpleNamespace
from fedagent_node.broker.embedded import most_connections
from fedagent_node.process import start
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
config = SimpleNamespace(log_format="text", log_level="info")
def run(config):
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], most_connections())
    return 0
sys.argv[1:] = []
start("edge", lambda text: config, run, ())
"""


@pytest.mark.parametrize(
    ("soft", "hard", "then", "most"),
    [
        (1024, 4096, 4096, MAX_CONNECTIONS),
        (512, 1024, 1024, 1024 - OTHER_DESCRIPTORS),
    ],
)
def test_a_role_may_open_what_the_hard_limit_allows(
    soft: int, hard: int, then: int, most: int
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("this machine allows fewer")
    command = [sys.executable, "-c", ROLE, str(soft), str(hard)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(then), str(most)]


def test_what_is_said_once_is_logged_although_much_else_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = AgentConfig(data_dir=str(tmp_path), stream="digits")
    shell, counters = Shell(config, fatal=(), show=lambda _: None), Counter[str]()
    core = SimpleNamespace(core=SimpleNamespace(counters=counters))
    monkeypatch.setattr(shell, "driver", core, raising=False)
    monkeypatch.setattr("fedagent_node.shell.time.monotonic", lambda: 7.0)
    caplog.set_level(logging.WARNING)
    for i in range(int(WARNINGS_PER_S) + 3):
        shell._warn(Warn("a", f"came {i} times"))
    shell._warn(Warn("a", CLONED, once=True))
    assert len(caplog.messages) == WARNINGS_PER_S + 1
    assert caplog.messages[-1].endswith(CLONED)
    assert counters["not_logged"] == 3


async def test_what_begins_while_a_role_ends_does_not_keep_it(tmp_path: Path) -> None:
    shell = Shell(NodeConfig(data_dir=str(tmp_path)), fatal=(), show=lambda _: None)

    async def ends() -> None:
        try:
            await asyncio.Event().wait()
        finally:  # as a link does, whose last message begins something
            shell.spawn(asyncio.sleep(3600), "begun late")

    async def serve() -> None:
        shell.spawn(ends(), "ends")
        await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await shell.run(serve)
