"""What a task file holds, in numbers: for people before they give it to devices."""

import math
from collections import Counter
from typing import Any

from fedagent_task.recipe.shapes import MAX_PROGRAM_BYTES
from fedagent_task.task_file import TaskFile

from .codec import elements
from .spec import Role, Tensor

ROLES: dict[Role, str] = {
    "train": "trained, averaged",
    "mean": "statistics, averaged",
    "latest": "counters, the newest value is kept",
    "local": "stay on the device",
    "frozen": "never change, sent once",
}


def summary(task: TaskFile) -> dict[str, Any]:
    """Return inputs, target, tensors by role, operators and sizes, ready for JSON."""
    program = task.program
    target = program.target
    nodes = {"train": program.train.nodes, "evaluate": program.evaluate.nodes}
    return {
        "inputs": [
            {
                "name": one.name,
                "dtype": one.dtype,
                "shape": list(one.shape),
                "columns": [one.start, one.start + math.prod(one.shape)],
            }
            for one in program.inputs
        ],
        "target": None if target is None else target.dtype,
        "features": task.model.features,
        "classes": task.model.classes,
        "labels": list(task.labels),
        "tensors": {role: _counted(found) for role in ROLES if (found := program.of_roles(role))},
        "operators": dict(Counter(node.op for node in program.train.nodes).most_common()),
        "nodes": {name: len(found) for name, found in nodes.items()},
        "program_bytes": len(task.model.program),
        "program_bytes_limit": MAX_PROGRAM_BYTES,
        "onnx_bytes": len(task.onnx),
        "learner": dict(task.learner),
    }


def _counted(tensors: tuple[Tensor, ...]) -> dict[str, int]:
    numbers = sum(elements(one.shape) for one in tensors)
    return {"tensors": len(tensors), "numbers": numbers, "bytes": 4 * numbers}
