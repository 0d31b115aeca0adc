"""Scoring by an ONNX graph from the task: the only user of onnxruntime.

The graph has no weights; they come from the safetensors model that an order names and
enter as inputs (ADR 7). Only the trainer process imports this module.
"""

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Doubles, Floats, Weights

_INPUT = "x"
_REFUSED = (
    state.Fail,
    state.InvalidArgument,
    state.InvalidGraph,
    state.InvalidProtobuf,
    state.NotImplemented,
    state.RuntimeException,
)
_QUIET = 3
"""Errors only: a graph whose inputs could be constants is no news."""


class OnnxSession:
    """One graph, ready to run on any weights of its shapes.

    Args:
        graph: The task's ONNX bytes.
        names: The tensors of the model, which must be exactly the graph's inputs.

    Raises:
        TaskFormatError: The bytes are no graph of this model.
    """

    def __init__(self, graph: bytes, names: frozenset[str]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _QUIET
        # An arena keeps what the largest batch took for good; a device has better uses.
        options.enable_cpu_mem_arena = False
        try:
            self._session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        except _REFUSED as error:
            raise TaskFormatError("onnx", "the bytes are no graph that runs here") from error
        inputs = {item.name for item in self._session.get_inputs()}
        if inputs != names | {_INPUT} or len(self._session.get_outputs()) != 1:
            raise TaskFormatError("onnx", "the graph's inputs are not the model's tensors")

    def forward(self, weights: Weights, x: Floats) -> Doubles:
        """Return what `Model.forward` gives: float64 [n, outputs]."""
        feeds = {name: np.asarray(tensor, np.float32) for name, tensor in weights.items()}
        feeds[_INPUT] = np.ascontiguousarray(x, np.float32)
        (output,) = self._session.run(None, feeds)
        return np.asarray(output, np.float64)
