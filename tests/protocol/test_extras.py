"""Hints that name an extra: the file that was installed, never a bare name."""

import json
import sys
from pathlib import Path

import pytest

from fedagent_protocol import extras
from fedagent_protocol.extras import how_to_add


def record(url: str, **more: object) -> str:
    return json.dumps({"url": url, **more})


def said(monkeypatch: pytest.MonkeyPatch, text: str | None) -> str:
    monkeypatch.setattr(extras, "_direct_url", lambda: text)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    return how_to_add("plots")


def test_the_wheel_that_was_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = tmp_path / "my wheels" / "fedagent-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    from_file = said(monkeypatch, record(wheel.as_uri(), archive_info={}))
    assert from_file == f"pip install '{wheel}[plots]'"
    folder = record(tmp_path.as_uri(), dir_info={"editable": True})
    assert said(monkeypatch, folder) == f"pip install -e '{tmp_path}[plots]'"
    folder = record(tmp_path.as_uri(), dir_info={})
    assert said(monkeypatch, folder) == f"pip install '{tmp_path}[plots]'"


@pytest.mark.parametrize(
    "text",
    [None, "", "[]", "{}", record("file:///nowhere/f.whl"), record("https://x.example/f.whl")],
)
def test_without_the_file_it_is_built_again(
    monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    assert said(monkeypatch, text) == (
        'make wheel in a copy of fedagent, then pip install "$(ls dist/*.whl)[plots]"'
    )
