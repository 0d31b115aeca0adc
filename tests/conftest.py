"""Options of the whole suite."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

_FIELDS = Path(__file__).parent / "e2e"

# No test leaves a compiler behind; the one that wants it says so.
os.environ["FEDAGENT_WARM"] = "off"

# Tests measure no time: the first example of some compiles a kernel. A developer's run tries
# new examples each time; CI tries the same ones, so that red and green belong to the commit.
settings.register_profile("fedagent", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("fedagent")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", type=int, default=4, help="seeds of each survival case in virtual time"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole fields, with a process for each role, do not share the machine with other tests."""
    for item in items:
        if _FIELDS in item.path.parents:
            item.add_marker(pytest.mark.alone)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that take a `world_seed` with as many seeds as asked for."""
    if "world_seed" in metafunc.fixturenames:
        metafunc.parametrize("world_seed", range(metafunc.config.getoption("seeds")))
