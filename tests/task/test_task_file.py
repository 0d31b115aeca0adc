"""Task files: what was written is read, and what somebody else wrote is refused in one line."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.program import encode_program
from fedagent_task.program.spec import Tensor
from fedagent_task.task_file import (
    TaskFile,
    decode_task,
    encode_task,
    read_task_file,
    task_of_program,
    write_task_file,
)
from tests.task.program.test_codec import linear

FIRST = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(2, np.float32)}


def task() -> TaskFile:
    return task_of_program(
        encode_program(linear()), FIRST, classes=2, learner={"eta": 0.1}, labels=("off", "on")
    )


def test_what_was_written_is_read(tmp_path: Path) -> None:
    size = write_task_file(path := tmp_path / "a.fedtask", task())
    assert path.stat().st_size == size
    read = read_task_file(path)
    assert read.model == task().model
    assert (read.learner, read.labels, read.onnx) == ({"eta": 0.1}, ("off", "on"), b"")
    assert read.program == linear()
    for name, value in FIRST.items():
        np.testing.assert_array_equal(read.first[name], value)
    assert encode_task(read) == path.read_bytes()


def test_local_and_frozen_tensors_are_what_a_device_gets_once() -> None:
    tensors = (
        Tensor("weight", "float32", (2, 3), "frozen"),
        Tensor("bias", "float32", (2,), "local", learnt=True),
    )
    made = task_of_program(encode_program(linear(tensors=tensors)), FIRST, classes=2)
    assert not made.first
    assert sorted(made.once) == ["bias", "weight"]
    assert made.model.once_bytes == len(made.once_bytes) > 0
    assert decode_task(encode_task(made)).model == made.model


def test_tensors_that_are_not_the_programs_are_refused() -> None:
    body = encode_program(linear())
    for tensors, says in (
        ({"weight": FIRST["weight"]}, "bias"),
        ({**FIRST, "more": FIRST["bias"]}, "more than"),
        ({**FIRST, "bias": np.ones(3, np.float32)}, "shapes"),
        ({**FIRST, "bias": np.full(2, np.nan, np.float32)}, "finite"),
    ):
        with pytest.raises(TaskFormatError, match=says):
            task_of_program(body, tensors, classes=2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x80\x04.",
        pickle.dumps({"a": 1}),
        (2**63).to_bytes(8, "little") + b"{}",
        safetensors.numpy.save(FIRST),
        safetensors.numpy.save(FIRST, {"fedagent.task": "[]"}),
        safetensors.numpy.save(FIRST, {"fedagent.task": '{"version": 1, "classes": 2}'}),
        safetensors.numpy.save(
            FIRST, {"fedagent.task": json.dumps({"version": 1, "classes": 2, "program": "?"})}
        ),
        safetensors.numpy.save(
            FIRST, {"fedagent.task": json.dumps({"version": 2, "classes": 2, "program": ""})}
        ),
    ],
)
def test_other_files_are_refused_in_one_line(body: bytes) -> None:
    with pytest.raises(RecipeError, match="build it again"):
        decode_task(body)
