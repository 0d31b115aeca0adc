"""A stream that cannot be opened ends the start, and not every round after it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedagent_agent.daemon import check_stream
from fedagent_agent.streams.spec import StreamError


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ("csv:{0}/nope.csv", "csv: .*/nope.csv: there is no such file; check the path"),
        ("csv:{0}/thin.csv", "csv: .*/thin.csv: has one column only"),
        ("csv:{0}/open.csv", "no complete line"),
        ("replay:{0}/nope.npz", "no such file"),
        ("replay:{0}/empty.npz", "empty.npz is empty; put samples into it"),
        ("replay:{0}/empty.npz,labels=1", "empty.npz is empty; put samples into it"),
        ("digits:labels=77", "has no sample with these labels; choose other labels"),
        ("digits:part=5000/5000", "no sample with these labels"),
        ("csv:{0}/there.csv,label=mood", "no column 'mood'"),
    ],
)
def test_what_is_not_there_is_found(tmp_path: Path, stream: str, words: str) -> None:
    (tmp_path / "there.csv").write_text("x,y\n1,2\n")
    (tmp_path / "open.csv").write_text("x,y")
    (tmp_path / "thin.csv").write_text("y\n1\n")
    np.savez(tmp_path / "empty.npz", x=np.zeros((0, 4), np.float32), y=np.zeros(0, np.int64))
    with pytest.raises(StreamError, match=words):
        check_stream(stream.format(tmp_path))


def test_it_ends_the_start_with_one_line(tmp_path: Path) -> None:
    config = {"data_dir": str(tmp_path), "stream": "digits:labels=77", "discovery": "off"}
    done = subprocess.run(
        [sys.executable, "-m", "fedagent_agent", "--config", json.dumps(config)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 13
    assert "has no sample with these labels; choose other labels" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_there_passes(tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("x,y\n1,2\n")
    streams = ("digits:labels=3+7,part=2/4", "mqtt://h/t?features=a&label=b")
    for stream in (*streams, f"csv:{tmp_path}/there.csv"):
        check_stream(stream)
