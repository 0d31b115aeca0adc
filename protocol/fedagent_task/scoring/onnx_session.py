"""Scoring by an ONNX graph without weights: the only user of onnxruntime.

The weights come from a safetensors model and enter as inputs.
"""

from collections.abc import Set as AbstractSet
from threading import Timer

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Doubles, Floats, Weights
from fedagent_task.models.base import Csr
from fedagent_task.models.features import Raw
from fedagent_task.recipe.spec import ModelSpec
from fedagent_task.recipe.text import read_description

_INPUT = "x"
_DTYPES = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(bool)": "bool"}
"""Of an input that is no float32; tensors travel as float32 all of them."""
_REFUSED = (
    state.Fail,
    state.InvalidArgument,
    state.InvalidGraph,
    state.InvalidProtobuf,
    state.NotImplemented,
    state.RuntimeException,
)
LONGEST_S = 60.0
"""How long one batch may take: a graph of anybody's may loop."""
_QUIET = 3
"""Errors only: a graph whose inputs could be constants is no news."""


def _open(data: bytes) -> "onnxruntime.InferenceSession":
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _QUIET
    # An arena keeps what the largest batch took for good; a device has better uses.
    options.enable_cpu_mem_arena = False
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except _REFUSED as error:
        raise TaskFormatError("onnx", "the bytes are no graph that runs here") from error


class OnnxFile:
    """A whole model with its weights, which takes samples as the sensors say them.

    Raises:
        TaskFormatError: The bytes are nothing that `fedagent export --model` wrote.
    """

    def __init__(self, data: bytes) -> None:
        self._session = _open(data)
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.described = read_description(metadata)
        self._expect_shapes(self.described.model)

    def _expect_shapes(self, model: ModelSpec) -> None:
        """Try two samples: what a graph says of its shapes need not be so."""
        try:
            shape = self.forward(np.zeros((2, model.features), np.float32)).shape
        except (*_REFUSED, ValueError) as error:
            reason = f"the graph does not take {model.features} features as x"
            raise TaskFormatError("onnx", reason) from error
        wide = shape[1:] if model.kind == "graph" and model.regression else None
        if shape != (2, *(wide or (1 if model.regression else model.num_classes,))):
            raise TaskFormatError("onnx", "the graph does not give what its model gives")

    def forward(self, x: Raw | Csr) -> Doubles:
        """Return what the model says of raw samples [n, features]."""
        raw = x.dense() if isinstance(x, Csr) else x
        (output,) = self._session.run(None, {_INPUT: np.asarray(raw, np.float32)})
        return np.asarray(output, np.float64)


class GraphSession:
    """The ONNX graph of a model that travels as a graph; its output is [n, width].

    Raises:
        TaskFormatError: Its inputs are not among the model's tensors.
    """

    def __init__(self, graph: bytes, names: AbstractSet[str]) -> None:
        self._session = _open(graph)
        self._dtypes = {
            item.name: _DTYPES.get(item.type, "float32")
            for item in self._session.get_inputs()
            if item.name != _INPUT
        }
        if not self._dtypes.keys() <= names or len(self._session.get_outputs()) != 1:
            raise TaskFormatError("onnx", "the graph's inputs are not the model's tensors")

    def forward(self, weights: Weights, x: Floats) -> Doubles:
        """Return what `Model.forward` gives for one batch; `TaskFormatError`: it cannot."""
        feeds = {name: np.asarray(weights[name], kind) for name, kind in self._dtypes.items()}
        feeds[_INPUT] = np.ascontiguousarray(x, np.float32)
        options = onnxruntime.RunOptions()
        timer = Timer(LONGEST_S, setattr, (options, "terminate", True))
        timer.start()
        try:
            (output,) = self._session.run(None, feeds, options)
        except _REFUSED as error:
            raise TaskFormatError("onnx", "the graph does not run on the model") from error
        finally:
            timer.cancel()
        if output.ndim != 2 or len(output) != len(x):
            raise TaskFormatError("onnx", "the graph does not give what its model gives")
        return np.asarray(output, np.float64)
