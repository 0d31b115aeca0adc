"""The output of a model that travels as a graph: by torch, or by its ONNX graph."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedagent_protocol.extras import how_to_add
from fedagent_task.models import Doubles, Floats, Inputs, Labels, Model, Weights
from fedagent_task.models.base import batches, densed
from fedagent_task.models.graph import Graph
from fedagent_task.scoring.metrics import Evaluation, accuracy, evaluate, log_loss, mse

if TYPE_CHECKING:
    from fedagent_task.program.torch_program import TorchProgram

WEIGHT = "model."
"""Before a tensor's name: the input of an ONNX graph that takes it."""
BATCH = 256
"""Samples at once: activations of a convolution are many times their size."""

_log = logging.getLogger(__name__)


class Engine(Protocol):
    """What computes a graph's output."""

    def load(self, weights: Weights) -> None:
        """Take a model's tensors."""

    def outputs(self, x: Floats, y: Labels | None) -> tuple[Doubles, float]:
        """Return the program's output, float64 [n, width], and the task's own mean loss.

        The loss is NaN without labels, and where there is none.
        """


@dataclass(frozen=True)
class ScoredGraph(Graph):
    """A graph that can be scored."""

    engine: Engine

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return probabilities [n, classes], or values [n, width]."""
        parts = [output for output, _, _ in self._batches(weights, x, None)]
        return np.concatenate(parts) if parts else np.zeros((0, self.spec.outputs))

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return the mean of the task's own loss; NaN where an ONNX graph scores."""
        losses = [loss * len(output) for output, loss, _ in self._batches(weights, x, y)]
        return sum(losses) / max(len(y), 1)

    def evaluate(self, weights: Weights, x: Inputs, y: Labels) -> Evaluation:
        """Return how good the model is on scaled samples.

        Of classes the share that is right; of numbers the errors, where the output is one for
        each sample; of anything else the task's own loss alone.
        """
        classes = self.spec.classes
        numbers = not classes and self.program.target is not None
        loss = right = wrong = 0.0
        known = True
        for output, own, part in self._batches(weights, x, y):
            truth, count = y[part], len(output)
            if classes and output.shape[1] == classes:
                right += accuracy(output.argmax(axis=1), truth) * count
                loss += (own if not self.program.link else log_loss(output, truth)) * count
            elif numbers and output.shape[1] == 1:
                loss += mse(output[:, 0], truth) * count
                wrong += float(np.abs(output[:, 0] - truth).sum())
            else:
                known = False
                loss += own * count
        count = max(len(y), 1)
        if classes:
            return Evaluation(loss / count, right / count if known else None, len(y))
        return Evaluation(loss / count, None, len(y), wrong / count if known else None)

    def _batches(
        self, weights: Weights, x: Inputs, y: Labels | None
    ) -> Iterator[tuple[Doubles, float, slice]]:
        rows = densed(x)
        self.engine.load(weights)
        for part in batches(len(rows), BATCH):
            output, loss = self.engine.outputs(rows[part], None if y is None else y[part])
            yield _linked(output, self.program.link), loss, part


def evaluation_of(model: Model, weights: Weights, x: Inputs, y: Labels) -> Evaluation:
    """Return how good a model is on scaled samples, whatever its kind."""
    if isinstance(model, ScoredGraph):
        return model.evaluate(weights, x, y)
    return evaluate(model, weights, x, y)


class _Torch:
    """Takes memory from its first use on."""

    def __init__(self, graph: Graph, once: Weights) -> None:
        self._graph, self._once = graph, once

    @cached_property
    def _program(self) -> "TorchProgram":
        from fedagent_task.program.torch_program import TorchProgram  # noqa: PLC0415 - an optional package

        program = TorchProgram(self._graph.program)
        program.load(self._once)
        return program

    def load(self, weights: Weights) -> None:
        self._program.load(weights)

    def outputs(self, x: Floats, y: Labels | None) -> tuple[Doubles, float]:
        if y is None:
            inputs, _ = self._program.inputs_of(x, np.zeros(len(x)))
            output, loss = self._program.output(inputs, training=False), float("nan")
        else:
            output, loss = self._program.evaluate(self._program.inputs_of(x, y))
        return output.detach().cpu().numpy().astype(np.float64).reshape(len(x), -1), loss


def _linked(output: Doubles, link: str) -> Doubles:
    match link:
        case "softmax":
            shifted = np.exp(output - output.max(axis=1, keepdims=True))
            return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
        case "exp":
            return np.exp(output)
        case "sigmoid":
            one = 1.0 / (1.0 + np.exp(-np.clip(output, -60, 60)))
            return np.hstack([1.0 - one, one]) if output.shape[1] == 1 else one
        case _:
            return output


def onnx_sessions() -> ModuleType | None:
    """Return `onnx_session`, which takes 25 MB; None where onnxruntime is not installed."""
    if find_spec("onnxruntime") is None:
        return None
    from fedagent_task.scoring import onnx_session  # noqa: PLC0415 - an optional package

    return onnx_session


class _Onnx:
    def __init__(self, graph: Graph, once: Weights, onnx: bytes, sessions: ModuleType) -> None:
        specs = (*graph.manifest().specs, *graph.once_manifest().specs)
        self._session = sessions.GraphSession(onnx, {WEIGHT + spec.name for spec in specs})
        self._once = once
        self._weights: Weights = {}

    def load(self, weights: Weights) -> None:
        self._weights = {WEIGHT + name: one for name, one in {**self._once, **weights}.items()}

    def outputs(self, x: Floats, y: Labels | None) -> tuple[Doubles, float]:
        del y
        return self._session.forward(self._weights, x), float("nan")


def scored(graph: Graph, once: Mapping[str, Floats], onnx: bytes = b"") -> ScoredGraph | None:
    """Return the model with what computes its output; None if nothing here does.

    Args:
        graph: The model.
        once: The tensors that devices get once; empty where the program has none.
        onnx: Its ONNX graph, with the tensors as inputs; empty if it has none.

    Raises:
        TaskFormatError: The ONNX graph is none of this model. Also when it is scored: the model
            asks for more than there is.
    """
    if onnx and (sessions := onnx_sessions()) is not None:
        return ScoredGraph(graph.spec, _Onnx(graph, once, onnx, sessions))
    if find_spec("torch") is not None:
        return ScoredGraph(graph.spec, _Torch(graph, once))
    package = "onnxruntime" if onnx else "torch"
    _log.warning("models of this task are not scored here: %s", how_to_add(package))
    return None
