"""Options of the whole suite."""

import asyncio
import inspect
import os
import shutil
import signal
import sys
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_FIELDS = {"documents", "e2e", "netns"}
_NIGHTLY_FOLDERS = {"documents", "netns"}
_NIGHTLY_FILES = {
    *("docs/test_typed.py", "web/test_page.py", "cli/test_new.py", "cli/test_deployment.py"),
    *("learners/test_warm.py", "python/test_graph_tasks.py"),
    *("program/test_families.py", "testbed/test_off_policy.py"),
}
_EVERY_TIME = {"demo", "field", "joining", "tls", "revocation", "privacy"}
"""Of `tests/e2e`, whose other tests are for `make test-all`."""


def _is_nightly(path: Path) -> bool:
    """Whether only `make test-all` runs a file: networks, browsers, services, whole documents."""
    parts = path.parts
    if "e2e" in parts:
        return path.stem.removeprefix("test_") not in _EVERY_TIME
    named = "/".join(parts[-2:]) in _NIGHTLY_FILES
    return named or not _NIGHTLY_FOLDERS.isdisjoint(parts)


_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 2 << 30


def _in_memory() -> bool:
    """Whether this machine has a file system in memory, with room, that runs programs."""
    try:
        may_run = not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
        return may_run and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES
    except (OSError, AttributeError):
        return False


# Two thirds of a run in virtual time were the disk's: every note that must outlive a crash is
# synced. A process that dies needs no disk; who names a folder of his own keeps it.
if not {"TMPDIR", "PYTEST_DEBUG_TEMPROOT"} & os.environ.keys() and _in_memory():
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

# Hundreds of processes start, and each would compile what the one before had compiled.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

# What `make test` was told is not for a make that a test starts.
for _name in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS"):
    os.environ.pop(_name, None)

# A suite that was started in the background hears no Ctrl-C, nor would any process it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test leaves a compiler behind; the one that wants it says so.
os.environ["FEDAGENT_WARM"] = "off"

# Tests measure no time: the first example of some compiles a kernel, and a machine may be busy.
# A developer's run tries new examples each time; CI tries the same ones, so that red and green
# belong to the commit.
settings.register_profile(
    "fedagent",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedagent")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", type=int, default=1, help="seeds of each survival case in virtual time"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is for the night, and begin with whole fields, so that no worker is left with one
    when all others are done.
    """
    for item in items:
        if _is_nightly(item.path):
            item.add_marker("nightly")
    items.sort(key=lambda item: _FIELDS.isdisjoint(item.path.parts))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that take a `world_seed` with as many seeds as asked for."""
    if "world_seed" in metafunc.fixturenames:
        seeds = range(metafunc.config.getoption("seeds"))
        metafunc.parametrize("world_seed", seeds, indirect=True)


@pytest.fixture
def world_seed(request: pytest.FixtureRequest) -> int:
    """Return one of the first twenty seeds: where a case has only one, another for each case."""
    seed: int = request.param
    if request.config.getoption("seeds") > 1:
        return seed
    return zlib.crc32(request.node.name.encode()) % 20
