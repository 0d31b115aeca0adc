"""A store, and a run in it that knows eight clients and two edges."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedagent_coordinator.books.store import Store
from tests.fakes.stored_runs import begun


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Return an open store."""
    with Store(tmp_path) as opened:
        yield opened


@pytest.fixture
def run(store: Store) -> str:
    """Begin a run; return its id."""
    return begun(store).run_id
