"""The worlds of this folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from . import World


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    """Return what makes a world below the test's folder; of several, each in its own."""
    made: list[World] = []

    def make(**options: object) -> World:
        made.append(World(tmp_path / str(len(made)), **options))  # type: ignore[arg-type]
        return made[-1]

    return make
