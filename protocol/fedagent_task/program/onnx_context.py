"""An ONNX graph that is being drawn out of a program."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fedagent_task.errors import TaskError

from .spec import Argument, Ref

Shape = tuple[int, ...]


class NoOnnxFormError(TaskError):
    """Raised when an operator, or the way it is used, has no form in ONNX here."""

    template = "{operator} has no ONNX form here"

    operator: str


@dataclass
class Context:
    """A graph that is being drawn: `names` of the values so far, and their shapes for 2 and 3."""

    shapes: tuple[Mapping[int, Shape], Mapping[int, Shape]]
    names: dict[int, Any] = field(default_factory=dict)
    nodes: "list[onnx.NodeProto]" = field(default_factory=list)
    constants: "dict[str, onnx.TensorProto]" = field(default_factory=dict)
    at: str = ""
    value: int = -1
    _known: dict[tuple[str, Shape, bytes], str] = field(default_factory=dict)

    def add(self, operator: str, *inputs: str, count: int = 1, **settings: Any) -> str:
        """Add a node; return its first output."""
        return self.many(operator, *inputs, count=count, **settings)[0]

    def many(self, operator: str, *inputs: str, count: int, **settings: Any) -> list[str]:
        """Add a node of several outputs."""
        outputs = [f"t{len(self.nodes)}.{index}" for index in range(count)]
        self.nodes.append(helper.make_node(operator, inputs, outputs, **settings))
        return outputs

    def const(self, value: Any, dtype: str = "int64") -> str:
        """Return a constant, the same one for the same value."""
        array = np.array(value, dtype)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = name = f"c{len(self._known)}"
            self.constants[name] = numpy_helper.from_array(array, name)
        return self._known[key]

    def named(self, argument: Argument) -> str:
        """Return a tensor argument's name."""
        if not isinstance(argument, Ref):
            raise NoOnnxFormError(self.at)
        return str(self.names[argument.v])

    def shape(self, argument: Argument) -> Shape:
        """Return a tensor argument's shape, -1 where it grows with the batch."""
        if not isinstance(argument, Ref):
            raise NoOnnxFormError(self.at)
        return self.shape_of(argument.v)

    def shape_of(self, value: int) -> Shape:
        """Return a value's shape, -1 where it grows with the batch."""
        two, three = (shapes[value] for shapes in self.shapes)
        return tuple(a if a == b else -1 for a, b in zip(two, three, strict=True))

    def scalar(self, argument: Argument, like: Argument) -> str:
        """Return a tensor, or a number as a constant of another's type."""
        if isinstance(argument, Ref):
            given = self.names[argument.v]
            if self.is_number(argument):
                return self.add("Cast", self.add("Squeeze", given), to=TensorProto.FLOAT)
            return str(given)
        if not isinstance(argument, bool | int | float):
            raise NoOnnxFormError(self.at)
        return self.add("CastLike", self.const(argument, "float32"), self.named(like))

    def is_number(self, argument: Argument) -> bool:
        """Whether an argument refers to a number, kept as one int64 in a row."""
        return isinstance(argument, Ref) and argument.v not in self.shapes[0]

    def sizes(self, items: Any) -> str:
        """Return a list of sizes as one int64 tensor."""
        listed = items if isinstance(items, list) else [items]
        if all(isinstance(one, int) for one in listed):
            return self.const(listed)
        parts = [
            str(self.names[one.v]) if isinstance(one, Ref) else self.const([one]) for one in listed
        ]
        return self.add("Concat", *parts, axis=0)

    def fixed(self, *given: bool) -> None:
        """Refuse a use of an operator that has no form."""
        if not all(given):
            raise NoOnnxFormError(self.at)
