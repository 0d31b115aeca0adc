"""`fedagent task`: a file with a function becomes a task file; what is wrong is one line."""

import json
from pathlib import Path

import pytest

from fedagent_protocol.errors import FedagentError
from fedagent_task.task_file import read_task_file
from tests.typed import here

pytest.importorskip("torch")
FILE = """
import torch
from neighbour import CLASSES

FILE = 1

def build():
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8))
    return model, torch.nn.functional.cross_entropy, (torch.randn(4, 6), torch.zeros(4).long())

def branches():
    class Model(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.mean() > 0 else x
    return Model(3, 3), torch.nn.functional.mse_loss, (torch.ones(4, 3), None)

def nothing():
    return 3

def ends():
    raise SystemExit(3)

def talks():
    print("a word")
    return build()
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "neighbour.py").write_text("CLASSES = 8\n")
    (tmp_path / "a_model.py").write_text(FILE)
    return tmp_path / "a_model.py"


def test_a_function_becomes_a_file_that_is_read(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here("task", "build", f"{source}:build", json=True)
    built = json.loads(capsys.readouterr().out)
    assert (built["file"], built["features"], built["classes"]) == ("a_model.fedtask", 6, 8)
    assert built["tensors"]["train"] == {"tensors": 4, "numbers": 72, "bytes": 288}
    assert built["bytes"] == Path("a_model.fedtask").stat().st_size
    here("task", "show", Path("a_model.fedtask"), json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown == {key: built[key] for key in shown}
    here("task", "show", Path("a_model.fedtask"))
    text = capsys.readouterr().out
    assert "columns 0 to 5" in text
    assert "one of 8 classes" in text
    assert read_task_file(Path("a_model.fedtask")).model.features == 6


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("branches", "torch.where"),
        ("nothing", "return \\(model, loss, example\\)"),
        ("absent", r"there is no function 'absent'.*build, branches"),
        ("FILE", "no function"),
        ("ends", "SystemExit"),
        ("", "FILE.py:FUNCTION"),
    ],
)
def test_what_is_wrong_is_one_line(source: Path, name: str, says: str) -> None:
    with pytest.raises(FedagentError, match=says) as caught:
        here("task", "build", f"{source}:{name}")
    assert "\n" not in str(caught.value)


def test_what_the_file_prints_is_no_line_of_json(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here("task", "build", f"{source}:talks", json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["features"] == 6
    assert printed.err == "a word\n"
