"""Task files ``NAME.fedtask``: one safetensors file with a model's program and its first tensors.

The metadata holds `fedagent.task`, a JSON text; the tensors are all that the program begins from.
Nothing in it is code, and whatever is in it is read under limits.
"""

import base64
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors.numpy
from msgspec import Meta, Struct

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import (
    MAX_HEADER_BYTES,
    Manifest,
    decode_tensors,
    digest_of,
    encode_tensors,
)
from fedagent_task.recipe.shapes import MAX_PARAMETERS, MAX_PROGRAM_BYTES
from fedagent_task.recipe.spec import MAX_GRAPH_BYTES, ModelSpec, Params

from .errors import RecipeError, TaskFormatError
from .models.graph import Graph
from .program.codec import columns, decode_program, elements
from .program.spec import Program, Role, Tensor

SUFFIX = ".fedtask"
MAX_FILE_BYTES = 4 * MAX_PARAMETERS + MAX_HEADER_BYTES + 8
_KEY = "fedagent.task"
_HINT = "build it again: fedagent task build"

Arrays = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class TaskFile:
    """What a task file holds.

    `first` is what a run's first model holds, `once` what each device gets once; both float32.
    `learner` are defaults for ``[learner]``, `labels` the names of the classes, if it has them.
    """

    model: ModelSpec
    first: Arrays
    once: Arrays
    onnx: bytes = b""
    learner: Mapping[str, object] = field(default_factory=dict)
    labels: tuple[str, ...] = ()

    @property
    def program(self) -> Program:
        """What the model computes."""
        return decode_program(self.model.program)

    @property
    def first_bytes(self) -> bytes:
        """The file that `model.first` names."""
        return encode_tensors(self.first)

    @property
    def once_bytes(self) -> bytes:
        """The file that `model.once` names; empty if there is nothing in it."""
        return encode_tensors(self.once) if self.once else b""


_Program = Annotated[str, Meta(max_length=4 * (MAX_PROGRAM_BYTES // 3 + 1))]
_Onnx = Annotated[str, Meta(max_length=4 * (MAX_GRAPH_BYTES // 3 + 1))]


class _Task(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1]
    classes: Annotated[int, Meta(ge=0, le=1_000_000)]
    program: _Program
    onnx: _Onnx = ""
    learner: Params = msgspec.field(default_factory=dict)
    labels: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=4096)] = ()


class _Header(Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def metadata_of(body: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file; `msgspec.DecodeError`, or `ValueError`: none."""
    length = int.from_bytes(body[:8], "little")
    if length > MAX_HEADER_BYTES or 8 + length > len(body):
        raise ValueError("no header")
    return msgspec.json.decode(body[8 : 8 + length], type=_Header).metadata


def task_of_program(
    program: bytes,
    tensors: Arrays,
    *,
    classes: int,
    onnx: bytes = b"",
    learner: Mapping[str, object] | None = None,
    labels: tuple[str, ...] = (),
) -> TaskFile:
    """Return the task of an encoded program and all that it begins from.

    Raises:
        TaskFormatError: The tensors are not the program's.
    """
    known = decode_program(program)
    spec = ModelSpec(kind="graph", features=columns(known), classes=classes, program=program)
    graph = Graph(spec)
    parts = []
    for manifest in (graph.manifest(), graph.once_manifest()):
        lacking = {one.name for one in manifest.specs} - tensors.keys()
        if lacking:
            raise TaskFormatError(min(lacking), "is not among the tensors")
        parts.append(
            {one.name: np.asarray(tensors[one.name], np.float32) for one in manifest.specs}
        )
        if Manifest.of(parts[-1]) != manifest:
            raise TaskFormatError("tensors", "are not of the program's shapes")
    first, once = parts
    if len(first) + len(once) != len(tensors):
        raise TaskFormatError("tensors", "are more than the program's")
    if not all(np.isfinite(one).all() for one in tensors.values()):
        raise TaskFormatError("tensors", "hold numbers that are not finite")
    blob = encode_tensors(once) if once else b""
    named = msgspec.structs.replace(
        spec,
        first=digest_of(encode_tensors(first)),
        once=digest_of(blob) if once else "",
        once_bytes=len(blob),
    )
    return TaskFile(named, first, once, onnx, dict(learner or {}), labels)


def write_task_file(path: Path, task: TaskFile) -> int:
    """Write a task file, the same bytes for the same content; return how many.

    Raises:
        RecipeError: It could not be read again: its texts are over a limit.
        OSError: The file cannot be written.
    """
    body = encode_task(task)
    decode_task(body, name=path.name)
    path.write_bytes(body)
    return len(body)


def encode_task(task: TaskFile) -> bytes:
    """Return the bytes of a task file."""
    told = _Task(
        version=1,
        classes=task.model.classes,
        program=base64.b64encode(task.model.program).decode(),
        onnx=base64.b64encode(task.onnx).decode(),
        learner=dict(task.learner),  # type: ignore[arg-type] # checked when it is read
        labels=task.labels,
    )
    tensors = {**task.first, **task.once}
    text = msgspec.json.encode(told).decode()
    return safetensors.numpy.save(
        {name: np.asarray(tensors[name], order="C") for name in sorted(tensors)}, {_KEY: text}
    )


def read_task_file(path: Path) -> TaskFile:
    """Read a task file of anybody's.

    Raises:
        RecipeError: There is none, or it is not well formed; it says what to do.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            hint = "take a smaller model"
            raise RecipeError(str(path), f"is {size} bytes, the limit is {MAX_FILE_BYTES}", hint)
        body = path.read_bytes()
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
        raise RecipeError(str(path), reason, "create one with fedagent task build") from error
    return decode_task(body, name=str(path))


def decode_task(body: bytes, *, name: str = "the task file") -> TaskFile:
    """Read the bytes of a task file; raises `RecipeError`."""
    try:
        told = msgspec.json.decode(metadata_of(body).get(_KEY, ""), type=_Task)
        program = base64.b64decode(told.program, validate=True)
        known = decode_program(program)
        specs = Graph(ModelSpec(kind="graph", features=columns(known), program=program))
        every = Manifest(tuple(sorted((*specs.manifest().specs, *specs.once_manifest().specs))))
        tensors = decode_tensors(body, every)
        return task_of_program(
            program,
            {key: np.asarray(value, np.float32) for key, value in tensors.items()},
            classes=told.classes,
            onnx=base64.b64decode(told.onnx, validate=True),
            learner=told.learner,
            labels=told.labels,
        )
    except (TaskFormatError, ProtocolError) as error:
        raise RecipeError(name, f"is not well formed: {error}", _HINT) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RecipeError(name, "is not a task file", _HINT) from error


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
                "columns": [one.start, one.start + elements(one.shape)],
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
