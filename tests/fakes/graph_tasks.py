"""Task files that need no torch to be made: a softmax regression as a program."""

from pathlib import Path
from typing import Any

import numpy as np

from fedagent_task.program import Program, encode_program
from fedagent_task.program.spec import Graph, Input, Node, Ref, Target, Tensor
from fedagent_task.task_file import TaskFile, task_of_program, write_task_file

W, B, X, Y, OUTPUT, LOSS = range(6)


def dense(features: int = 64, classes: int = 10, *, frozen: bool = False) -> Program:
    """Return a softmax regression; its weight is learnt, or with `frozen` got once."""
    nodes = (
        Node("linear", (Ref(X), Ref(W), Ref(B))),
        Node("cross_entropy_loss", (Ref(OUTPUT), Ref(Y))),
    )
    shape = (classes, features)
    weight = Tensor("weight", "float32", shape, "train", learnt=True)
    if frozen:
        weight = Tensor("weight", "float32", shape, "frozen")
    return Program(
        version=1,
        inputs=(Input("x", 0, (features,), "float32"),),
        target=Target("int64"),
        tensors=(weight, Tensor("bias", "float32", (classes,), "train", learnt=True)),
        constants=(),
        train=Graph(nodes, OUTPUT, LOSS),
        evaluate=Graph(nodes, OUTPUT, LOSS),
        link="softmax",
    )


def dense_task(features: int = 64, classes: int = 10, **more: Any) -> TaskFile:
    """Return its task, which begins from small random weights."""
    rng = np.random.default_rng(5)
    tensors = {
        "weight": rng.normal(0, 0.1, (classes, features)).astype(np.float32),
        "bias": np.zeros(classes, np.float32),
    }
    program = encode_program(dense(features, classes, frozen=more.pop("frozen", False)))
    return task_of_program(program, tensors, classes=classes, **more)


def written(folder: Path, task: TaskFile, name: str = "my.fedtask") -> Path:
    """Write a task file."""
    path = folder / name
    write_task_file(path, task)
    return path
