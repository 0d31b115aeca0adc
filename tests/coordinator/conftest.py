"""A store, and a run in it that knows eight clients and two edges."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedagent_coordinator.books.write import Books
from tests.fakes.stored_runs import begun


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Books]:
    """Return an open store."""
    with Books(tmp_path) as opened:
        yield opened


@pytest.fixture
def run(store: Books) -> str:
    """Begin a run; return its id."""
    return begun(store).run_id
