"""Model files that `fedagent export --model` wrote, ready for samples."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedagent_protocol.extras import how_to_add
from fedagent_protocol.tensors import decode_tensors
from fedagent_task.errors import NotInstalledError, TaskFormatError
from fedagent_task.models import Doubles, Floats, Model, Weights, create
from fedagent_task.models.base import Csr
from fedagent_task.models.features import Raw, scaled
from fedagent_task.models.graph import Graph, array_of
from fedagent_task.program.spec import Constant
from fedagent_task.recipe.text import Described, read_description
from fedagent_task.scoring.graph import onnx_sessions, scored
from fedagent_task.task_file import metadata_of
from fedagent_task.travelling import model_tensors


class Predictor(Protocol):
    """A model file, ready for samples as the sensors say them."""

    @property
    def described(self) -> Described:
        """What it takes and gives."""

    def forward(self, x: Raw | Csr) -> Doubles:
        """Return what `Model.forward` gives, for raw samples [n, features]."""


@dataclass(frozen=True, slots=True)
class TensorsFile:
    """Weights of a safetensors file."""

    described: Described
    model: Model
    weights: Weights

    def forward(self, x: Raw | Csr) -> Doubles:
        """Return what the model says of raw samples."""
        taken = scaled(x, self.described.data)
        return self.model.forward(self.weights, taken)


def open_model(data: bytes) -> Predictor:
    """Return the model in a safetensors or ONNX file that `fedagent export --model` wrote.

    Raises:
        TaskFormatError: It is none, or says not what it takes.
        NotInstalledError: It is of kind graph, and torch is not installed.
        ProtocolError: Its tensors are not those that it says.
        ModuleNotFoundError: onnxruntime is not installed.
    """
    if data[8:9] == b"{":
        return _tensors_file(data)
    if (sessions := onnx_sessions()) is None:
        raise ModuleNotFoundError("onnxruntime", name="onnxruntime")
    opened: Predictor = sessions.OnnxFile(data)
    return opened


def whole(graph: Graph, tensors: Weights) -> dict[str, Floats]:
    """Return what the author's modules keep, float32 all of it, each under all of its names."""
    return {
        name: array_of(one).astype(np.float32) if isinstance(one, Constant) else tensors[one.name]
        for name, one in graph.program.named()
    }


def _tensors_file(data: bytes) -> TensorsFile:
    try:
        metadata = metadata_of(data)
    except (ValueError, RecursionError) as error:
        raise TaskFormatError("model", "the bytes are no model") from error
    told = read_description(metadata)
    model = create(told.model)
    if isinstance(model, Graph):
        tensors = decode_tensors(data, model.whole_manifest())
        tensors = {one.name: tensors[one.name] for one in model.program.tensors}
    else:
        tensors = model_tensors(data, model.manifest())
    floats = {name: one.astype(np.float32) for name, one in tensors.items()}
    runs = scored(model, floats) if isinstance(model, Graph) else model
    if runs is None:
        what = "a prediction of a model of kind graph is computed by torch"
        raise NotInstalledError(what, how_to_add("torch"))
    return TensorsFile(told, runs, floats)
