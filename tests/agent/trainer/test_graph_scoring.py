"""Scores of models that travel as graphs, on the device and with either engine."""

from typing import Any

import numpy as np
import pytest

from fedagent_task.models.graph import Graph
from fedagent_task.scoring.graph import scored
from tests.fakes.graph_tasks import dense_task

pytest.importorskip("torch")
RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(600, 64)).astype(np.float32), RNG.integers(0, 10, 600)


def softmax(tensors: Any) -> np.ndarray:
    logits = (X @ tensors["weight"].T + tensors["bias"]).astype(np.float64)
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("frozen", [False, True])
def test_torch_gives_what_numpy_does(*, frozen: bool) -> None:
    task = dense_task(frozen=frozen)
    tensors = {**task.first, **task.once}
    graph = scored(Graph(task.model), task.once)
    assert graph is not None
    np.testing.assert_allclose(graph.forward(task.first, X), softmax(tensors), atol=1e-6)
    found = graph.evaluate(task.first, X, Y)
    expected = softmax(tensors)
    assert found.accuracy == pytest.approx((expected.argmax(axis=1) == Y).mean())
    loss = -np.log(expected[np.arange(len(Y)), Y]).mean()
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert graph.forward(task.first, X[:0]).shape == (0, 10)
