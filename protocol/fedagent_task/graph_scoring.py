"""The output of a model that travels as a graph: by torch, or by its ONNX graph."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import numpy as np

from fedagent_protocol.extras import how_to_add

from .metrics import Evaluation, accuracy, log_loss, mse
from .models import Doubles, Floats, Inputs, Labels, Weights
from .models.base import densed
from .models.graph import Graph

BATCH = 256
"""Samples at once: activations of a convolution are many times their size."""

_log = logging.getLogger(__name__)


class Engine(Protocol):
    """What computes a graph's output."""

    def load(self, weights: Weights) -> None:
        """Take a model's tensors."""

    def outputs(self, x: Floats, y: Labels | None) -> tuple[Doubles, float]:
        """Return float64 [n, ...], and the mean loss; NaN without labels or where it has none."""


@dataclass(frozen=True)
class ScoredGraph(Graph):
    """A graph that can be scored."""

    engine: Engine

    def forward(self, weights: Weights, x: Inputs) -> Doubles:
        """Return probabilities [n, classes], or values [n, width], as `Model.forward`."""
        parts = [self._linked(output) for output, _, _ in self._batches(weights, x, None)]
        return np.concatenate(parts) if parts else np.zeros((0, self.spec.outputs))

    def loss(self, weights: Weights, x: Inputs, y: Labels) -> float:
        """Return the mean of the task's own loss; NaN where an ONNX graph scores."""
        return self.evaluate(weights, x, y).loss

    def evaluate(self, weights: Weights, x: Inputs, y: Labels) -> Evaluation:
        """Return how good the model is on scaled samples.

        Of classes the share that is right; of numbers the errors, where the output is one for
        each sample; of anything else the task's own loss.
        """
        numbers = self.spec.regression and self.program.target is not None
        loss = right = wrong = 0.0
        known = True
        for output, own, part in self._batches(weights, x, y):
            truth, linked = y[part], self._linked(output)
            if self.spec.classes:
                known = known and linked.shape[1] == self.spec.classes
                right += accuracy(linked.argmax(axis=1), truth) * len(truth)
                loss += (log_loss(linked, truth) if np.isnan(own) else own) * len(truth)
            elif numbers and linked.shape[1] == 1:
                loss += mse(linked[:, 0], truth) * len(truth)
                wrong += float(np.abs(linked[:, 0] - truth).sum())
            else:
                known = False
                loss += own * len(truth)
        count = max(len(y), 1)
        if self.spec.regression:
            return Evaluation(loss / count, None, len(y), wrong / count if known else None)
        return Evaluation(loss / count, right / count if known else None, len(y))

    def _batches(
        self, weights: Weights, x: Inputs, y: Labels | None
    ) -> Iterator[tuple[Doubles, float, slice]]:
        rows = densed(x)
        self.engine.load(weights)
        for start in range(0, len(rows), BATCH):
            part = slice(start, start + BATCH)
            output, loss = self.engine.outputs(rows[part], None if y is None else y[part])
            yield output.reshape(len(rows[part]), -1), loss, part

    def _linked(self, output: Doubles) -> Doubles:
        match self.program.link:
            case "softmax":
                shifted = np.exp(output - output.max(axis=1, keepdims=True))
                return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
            case "exp":
                return np.exp(output)
            case "sigmoid" if output.shape[1] == 1 and self.spec.classes == 2:
                one = 1.0 / (1.0 + np.exp(-np.clip(output, -60, 60)))
                return np.hstack([1.0 - one, one])
            case _:
                return output


class _Torch:
    def __init__(self, graph: Graph, once: Weights) -> None:
        from .program.torch_program import TorchProgram  # noqa: PLC0415 - an optional package

        self._program = TorchProgram(graph.program)
        self._program.load(once)

    def load(self, weights: Weights) -> None:
        self._program.load(weights)

    def outputs(self, x: Floats, y: Labels | None) -> tuple[Doubles, float]:
        if y is None:
            inputs, _ = self._program.inputs_of(x, np.zeros(len(x)))
            output, loss = self._program.output(inputs, training=False), float("nan")
        else:
            output, loss = self._program.evaluate(self._program.inputs_of(x, y))
        return output.detach().cpu().numpy().astype(np.float64), loss


def scored(graph: Graph, once: Mapping[str, Floats], onnx: bytes = b"") -> ScoredGraph | None:
    """Return the model with what computes its output; None if nothing here does.

    Args:
        graph: The model.
        once: The tensors that devices get once; empty where the program has none.
        onnx: Its ONNX graph, with the tensors as inputs; empty if it has none.

    Raises:
        ProgramError: It asks for more than there is.
        TaskFormatError: The ONNX graph is none of this model.
    """
    del onnx
    if find_spec("torch") is not None:
        return ScoredGraph(graph.spec, _Torch(graph, once))
    _log.warning("models of this task are not scored here: %s", how_to_add("torch"))
    return None
