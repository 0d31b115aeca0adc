"""A role's process: its files, its memory, its log, and the work around its core."""

import logging
import platform
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedagent_agent.config import AgentConfig
from fedagent_coordinator.errors import StoreFailedError
from fedagent_edge.core.edge import CLONED
from fedagent_node.broker.embedded_limits import MAX_CONNECTIONS, OTHER_DESCRIPTORS
from fedagent_node.effects import Warn
from fedagent_node.shell import WARNINGS_PER_S, Shell

ROLE = """
import resource, sys
from collections import Counter
from types import SimpleNamespace
from fedagent_node.broker.embedded_limits import Admission
from fedagent_node.process import start
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
config = SimpleNamespace(log_format="text", log_level="info")
def run(config):
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], Admission(Counter()).most)
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


def test_no_disk_is_blamed_where_descriptors_are_out() -> None:
    error = StoreFailedError("[Errno 24] Too many open files: coordinator.db-wal")
    assert "ulimit" in error.hint
    assert "disk" not in str(error)
    assert "disk" in StoreFailedError("disk I/O error").hint


FRAGMENTS = """
import time
from fedagent_node.process import trim_now_and_again

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

blocks = [bytes(4000) for _ in range(20_000)]
few = blocks[::50]
del blocks
before = resident()
print(trim_now_and_again(0.05))
end = time.monotonic() + 20
while (now := resident()) > before - 40_000_000 and time.monotonic() < end:
    time.sleep(0.05)
print(before - now, len(few))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps such pages")
def test_pages_between_blocks_in_use_are_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRAGMENTS], capture_output=True, text=True, check=True
    )
    does, given, _ = done.stdout.split()
    assert does == "True"
    assert int(given) > 40_000_000


RINGS = """
import asyncio, gc
from fedagent_node.process import keep_collecting

async def main():
    collecting = asyncio.create_task(keep_collecting(every_s=0.001))
    await asyncio.sleep(0)
    frozen = gc.get_freeze_count()
    ring = []
    ring.append(ring)
    del ring
    before = gc.get_stats()[2]
    while gc.get_stats()[2]["collected"] == before["collected"]:
        await asyncio.sleep(0)
    print(frozen)

asyncio.run(main())
"""


def test_rings_are_found_by_time_not_only_by_their_number() -> None:
    command = [sys.executable, "-c", RINGS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert int(done.stdout) > 1000, "what there was is frozen"


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
