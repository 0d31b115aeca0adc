"""What several modules of these tests share."""

from pathlib import Path

import pytest

from tests.fakes.written_runs import write_run


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_run(folder / "coordinator")
    return folder
