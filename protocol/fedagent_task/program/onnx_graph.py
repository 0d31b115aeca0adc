"""The graph by which a task is scored without torch: its module in ONNX, by torch's own exporter.

Inputs are ``x``, float32 [n, features], and each tensor that scoring needs, as ``model.NAME``. The
output is that of the program, [n, width]: `Program.link` says what makes probabilities of it.
"""

import itertools

import torch
from torch import nn
from torch.export import Dim

from fedagent_task.scoring.graph import WEIGHT

from .codec import columns, elements
from .example import quiet, unchanged
from .spec import Program

OPSET = 18


def onnx_graph(model: nn.Module, program: Program) -> bytes:
    """Return the graph; raises what torch raises of an operator that has no form in ONNX."""
    whole = _Scored(model, program)
    x = torch.zeros((2, columns(program)))
    with unchanged(whole), quiet():
        whole.eval()
        made = torch.onnx.export(
            whole,
            (x,),
            dynamo=True,
            optimize=False,  # weights that are still constants would be folded into others
            opset_version=OPSET,
            input_names=["x"],
            output_names=["output"],
            dynamic_shapes=({0: Dim.DYNAMIC},),
            verbose=False,
        )
    graph = made.model.graph
    names = {other: one.name for one in program.tensors for other in (one.name, *one.tied)}
    for name, value in list(graph.initializers.items()):
        if (known := names.get(name.removeprefix(WEIGHT))) is not None:
            del graph.initializers[name]
            value.name, value.const_value = WEIGHT + known, None
            graph.inputs.append(value)
    made.optimize()
    for one in (made.model, graph, *graph.inputs, *graph.initializers.values()):
        one.metadata_props.clear()
    numbers = itertools.count()
    for node in graph:
        # Names are long, and the author's own folders stand in the notes.
        node.name = None
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
            if not value.is_graph_output():
                value.name, value.type, value.shape = f"v{next(numbers)}", None, None
    return bytes(made.model_proto.SerializeToString(deterministic=True))


class _Scored(nn.Module):  # type: ignore[misc] # torch is not there to mypy
    """A model that takes rows and gives rows."""

    def __init__(self, model: nn.Module, program: Program) -> None:
        super().__init__()
        self.model, self._inputs = model, program.inputs

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        given = []
        for one in self._inputs:
            part = x[:, one.start : one.start + elements(one.shape)]
            given.append(part.reshape(-1, *one.shape).to(getattr(torch, one.dtype)))
        output = self.model(*given)
        first = output[0] if isinstance(output, tuple | list) else output
        return first.reshape(len(x), -1)
