"""Models as ONNX files, built operator by operator: the only user of the onnx package.

A file takes ``x``, float32 [n, features], as the sensors say them, and gives ``output``, what
`Model.forward` gives: probabilities [n, classes], scores of an svm, or values [n, 1].
Nothing of torch is needed to make one, and nothing of ours to run one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fedagent_task.models import Weights
from fedagent_task.models.features import Scaling, scaling_of
from fedagent_task.recipe.shapes import POOL
from fedagent_task.recipe.spec import DataSpec, ModelSpec
from fedagent_task.scoring.graph import WEIGHT

from .errors import RefusedError

OPSET = 17
_IR = 8
"""Version of the file's form that goes with the operators: runtimes of 2022 read both."""
INPUT, OUTPUT = "x", "output"


def to_onnx(
    spec: ModelSpec,
    weights: Weights,
    data: DataSpec | None = None,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return a model with its weights as an ONNX file, whose graph scales as `data` says."""
    build = _KINDS.get(spec.kind)
    if build is None:
        known = ", ".join(_KINDS)
        problem = f"a {spec.kind} model has no ONNX form"
        raise RefusedError(problem, f"ONNX knows {known}; take safetensors")
    draft = _Draft()
    for name in sorted(weights):
        draft.hold(name, np.asarray(weights[name], np.float32))
    if data is not None:
        draft.scale(scaling_of(data))
    build(draft, spec)
    x = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", spec.features])
    output = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", None])
    graph = helper.make_graph(draft.nodes, "fedagent", [x], [output], draft.tensors)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(
        graph, opset_imports=[opset], ir_version=_IR, producer_name="fedagent"
    )
    helper.set_model_props(model, dict(sorted((metadata or {}).items())))
    return bytes(model.SerializeToString(deterministic=True))


def with_weights(
    body: bytes, link: str, weights: Weights, data: DataSpec, metadata: Mapping[str, str]
) -> bytes:
    """Return the graph of a task with its weights inside.

    It scales samples, and makes probabilities of the output as the program's `link` says.
    """
    model = onnx.load_model_from_string(body)
    graph = model.graph
    for one in [item for item in graph.input if item.name != INPUT]:
        graph.input.remove(one)
        dtype = helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
        tensor = np.asarray(weights[one.name.removeprefix(WEIGHT)], dtype)
        graph.initializer.append(numpy_helper.from_array(tensor, one.name))
    draft = _Draft("scaled")
    draft.scale(scaling_of(data))
    for node in graph.node:
        node.input[:] = [draft.x if name == INPUT else name for name in node.input]
    graph.initializer.extend(draft.tensors)
    inner = list(graph.node)
    del graph.node[:]
    graph.node.extend([*draft.nodes, *inner])
    if link:
        for node in graph.node:
            node.output[:] = ["raw" if name == OUTPUT else name for name in node.output]
        linked = _Draft("linked")
        linked.link(link, "raw")
        graph.node.extend(linked.nodes)
    helper.set_model_props(model, dict(sorted(metadata.items())))
    return bytes(model.SerializeToString(deterministic=True))


@dataclass
class _Draft:
    """A graph that is being drawn; `x` is what the model takes: scaled samples."""

    prefix: str = "t"
    x: str = INPUT
    tensors: "list[onnx.TensorProto]" = field(default_factory=list)
    nodes: "list[onnx.NodeProto]" = field(default_factory=list)

    def hold(self, name: str, values: NDArray[np.generic]) -> str:
        self.tensors.append(numpy_helper.from_array(values, name))
        return name

    def add(self, operator: str, *inputs: str, to: str = "", **settings: object) -> str:
        name = to or f"{self.prefix}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **settings))
        return name

    def scale(self, how: Scaling) -> None:
        """Add ``(x - center) * factor + shift``, as far as it changes anything."""
        for operator, values, nothing in (
            ("Sub", how.center, 0.0),
            ("Mul", how.factor, 1.0),
            ("Add", how.shift, 0.0),
        ):
            if (values != nothing).any():
                by = self.hold(f"{operator.lower()}-by", values.astype(np.float32))
                self.x = self.add(operator, self.x, by)

    def dense(self, seen: str, name: str, to: str = "") -> str:
        return self.add("Gemm", seen, f"{name}weight", f"{name}bias", transB=1, to=to)

    def link(self, how: str, z: str) -> None:
        """Give what a link makes of the last layer."""
        match how:
            case "softmax":
                self.add("Softmax", z, axis=1, to=OUTPUT)
            case "exp":
                self.add("Exp", z, to=OUTPUT)
            case _:
                # Of -z and z: neither probability is a difference of nearly equal numbers.
                sides = [self.add("Sigmoid", side) for side in (self.add("Neg", z), z)]
                self.add("Concat", *sides, axis=1, to=OUTPUT)


def _linked(draft: _Draft, spec: ModelSpec) -> None:
    draft.link(spec.kind, draft.dense(draft.x, ""))


def _linear(draft: _Draft, _spec: ModelSpec) -> None:
    draft.dense(draft.x, "", to=OUTPUT)


def _svm(draft: _Draft, spec: ModelSpec) -> None:
    if spec.outputs > 1:
        _linear(draft, spec)
        return
    z = draft.dense(draft.x, "")
    draft.add("Concat", draft.add("Neg", z), z, axis=1, to=OUTPUT)


def _mlp(draft: _Draft, spec: ModelSpec, seen: str = "") -> None:
    seen = seen or draft.x
    depth = 1 + len(spec.widths)
    for index in range(1, depth):
        seen = draft.add("Relu", draft.dense(seen, f"dense{index}."))
    draft.link("softmax", draft.dense(seen, f"dense{depth}."))


def _cnn(draft: _Draft, spec: ModelSpec) -> None:
    rows, columns, channels = spec.picture
    shape = np.array([-1, channels, rows, columns], np.int64)
    seen = draft.add("Reshape", draft.x, draft.hold("image", shape))
    for index in range(1, len(spec.plan.convolutions) + 1):
        seen = draft.add("Conv", seen, f"conv{index}.weight", f"conv{index}.bias")
        seen = draft.add("MaxPool", seen, kernel_shape=[POOL, POOL], strides=[POOL, POOL])
        seen = draft.add("Relu", seen)
    _mlp(draft, spec, draft.add("Flatten", seen, axis=1))


_KINDS: Mapping[str, Callable[[_Draft, ModelSpec], None]] = {
    "softmax": _linked,
    "logistic": _linked,
    "linear": _linear,
    "svm": _svm,
    "mlp": _mlp,
    "cnn": _cnn,
}
