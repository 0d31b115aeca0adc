"""The evaluate graph as ONNX with its tensors as inputs, operator by operator.

Inputs are ``x``, float32 [n, features], and every tensor of the program that scoring needs, float32
under its own name. The output is that of the program, [n, width]: `Program.link` says what makes
probabilities of it. Only who makes a task needs the package onnx; an operator without a form
leaves a task without a graph.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .codec import columns, elements
from .onnx_context import Context, NoOnnxFormError
from .onnx_forms import FORMS
from .spec import Node, Program, Ref

OPSET = 17
_IR = 8
_INPUT, _OUTPUT = "x", "output"
_TYPES = {"int64": TensorProto.INT64, "bool": TensorProto.BOOL}

Shapes = Mapping[int, tuple[int, ...]]


def onnx_graph(program: Program, two: Shapes, three: Shapes) -> bytes:
    """Return the graph; the shapes are those of all values for two and for three samples.

    Raises:
        NoOnnxFormError: It names the operator that has no form.
    """
    context = Context(shapes=(two, three))
    wanted = _wanted(program)
    graph = program.evaluate
    needed = {program.first_node + index for index in wanted}
    used = {value for index in wanted for value in _refs(graph.nodes[index])}
    inputs = _sources(program, context, used)
    for index in wanted:
        node = graph.nodes[index]
        context.at, context.value = node.op, program.first_node + index
        form = FORMS.get(node.op)
        if form is None:
            raise NoOnnxFormError(node.op)
        context.names[context.value] = form(context, list(node.args))
    if graph.output not in needed:
        raise NoOnnxFormError("a model without operators")
    _finish(context, program)
    x = helper.make_tensor_value_info(_INPUT, TensorProto.FLOAT, ["n", columns(program)])
    output = helper.make_tensor_value_info(_OUTPUT, TensorProto.FLOAT, ["n", None])
    made = helper.make_graph(
        context.nodes, "fedagent", [x, *inputs], [output], list(context.constants.values())
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(made, opset_imports=[opset], ir_version=_IR, producer_name="fedagent")
    return bytes(model.SerializeToString(deterministic=True))


def _sources(program: Program, context: Context, used: set[int]) -> "list[onnx.ValueInfoProto]":
    """Draw what nodes may refer to before the first of them; return the tensors as inputs."""
    found = []
    for value, tensor in enumerate(program.tensors):
        if value in used:
            found.append(
                helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape)
            )
            name = tensor.name
            if tensor.dtype in _TYPES:
                name = context.add("Cast", name, to=_TYPES[tensor.dtype])
            context.names[value] = name
    for value, one in enumerate(program.inputs, program.first_input):
        bounds = [context.const([n]) for n in (one.start, one.start + elements(one.shape), 1)]
        part = context.add("Slice", _INPUT, *bounds)
        shaped = context.add("Reshape", part, context.const([-1, *one.shape]))
        if one.dtype in _TYPES:
            shaped = context.add("Cast", shaped, to=_TYPES[one.dtype])
        context.names[value] = shaped
    for value, constant in enumerate(program.constants, program.first_constant):
        if value in used:
            little = np.dtype(constant.dtype).newbyteorder("<")
            array = np.frombuffer(constant.data, little).reshape(constant.shape)
            name = f"constant{value}"
            context.constants[name] = numpy_helper.from_array(array.astype(constant.dtype), name)
            context.names[value] = name
    return found


def _finish(context: Context, program: Program) -> None:
    """Name the output, [n, width]."""
    wide = elements(tuple(context.shape_of(program.evaluate.output)[1:]))
    name, shape = str(context.names[program.evaluate.output]), context.const([-1, wide])
    context.nodes.append(helper.make_node("Reshape", [name, shape], [_OUTPUT]))


def _wanted(program: Program) -> list[int]:
    """Return the nodes that the output needs, in order; what writes in place has a form or not."""
    nodes, first = program.evaluate.nodes, program.first_node
    seen, wanted = {program.evaluate.output}, []
    for index in reversed(range(len(nodes))):
        if first + index in seen:
            wanted.append(index)
            seen |= set(_refs(nodes[index]))
    return wanted[::-1]


def _refs(node: Node) -> Sequence[int]:
    items = [
        one
        for argument in node.args
        for one in (argument if isinstance(argument, list) else [argument])
    ]
    return [one.v for one in items if isinstance(one, Ref)]
