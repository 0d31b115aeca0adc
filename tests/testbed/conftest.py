"""A small folder of recorded files, so that nothing real is needed."""

from pathlib import Path

import pytest

from tests.fakes import stream_files


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    stream_files.write(root)
    return root


@pytest.fixture
def stream_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let FEDAGENT_DATA name the folder."""
    monkeypatch.setenv("FEDAGENT_DATA", str(folder))
    return folder
