"""Task files that somebody has changed: trained or refused by our own errors, nothing executed.

The ten thousand are `python -m bench hostile`.
"""

import base64
import json
import warnings
from pathlib import Path

import pytest

from fedagent_task.errors import TaskFileError
from fedagent_task.program.torch_program import TorchProgram
from fedagent_task.task_file import decode_task, encode_task
from tests.fakes.hostile_tasks import Mutator, bomb, tried
from tests.task.program.test_families import made, task_of

TRIALS = 150


@pytest.mark.parametrize("name", ["lora", "two-inputs"])
def test_a_changed_file_is_trained_or_refused_and_never_executed(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    body = encode_task(task_of(made(name)[1]))
    assert tried(body) == "trained"
    ends = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of shapes that it will refuse one day
        for seed in range(TRIALS):
            ends.add(tried(Mutator(seed, body, bomb(mark)).mutated()))
    assert ends == {"trained", "program", "file"}
    assert not mark.exists()


@pytest.mark.parametrize("place", ["file", "metadata", "program", "onnx", "tail", "learner"])
def test_a_pickle_bomb_is_nowhere_unpickled(place: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    charge = bomb(mark)
    body = encode_task(task_of(made("lora")[1]))
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    told = json.loads(header["__metadata__"]["fedagent.task"])
    if place in ("program", "onnx"):
        told[place] = base64.b64encode(charge).decode()
    if place == "learner":
        told[place] = {"rate": base64.b64encode(charge).decode()}
    header["__metadata__"]["fedagent.task"] = json.dumps(told)
    if place == "metadata":
        header["__metadata__"]["fedagent.task"] = charge.decode("latin1")
    text = json.dumps(header).encode()
    whole = len(text).to_bytes(8, "little") + text + body[8 + length :]
    whole = {"file": charge, "tail": whole + charge}.get(place, whole)
    if place in ("onnx", "learner"):  # looked at by who uses them, as ONNX and as numbers
        TorchProgram(decode_task(whole).program)
    else:
        with pytest.raises(TaskFileError):
            decode_task(whole)
    assert not mark.exists()
