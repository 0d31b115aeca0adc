"""Evaluating networks on held-out data: the same with and without onnxruntime."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.held_out import HeldOutSet, held_out
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.models import Cnn
from fedagent_task.recipe import parse_recipe

RECIPE = """
name = "evaluated"
model = { kind = "cnn", layout = "fashion", image = [16, 16, 1], features = 256, classes = 3 }
rounds = { count = 3, deadline_s = 1.0 }
budget = { per_edge = 4.0 }
"""


def test_a_convolutional_network_is_evaluated_the_same_by_either_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    rng = np.random.default_rng(0)
    path = tmp_path / "held.npz"
    np.savez(path, x=rng.normal(size=(150, 256)), y=rng.integers(0, 3, 150))
    recipe = parse_recipe(RECIPE, [f"evaluation.dataset='{path}'"])
    quick = held_out(recipe)
    monkeypatch.setattr("fedagent_coordinator.held_out.find_spec", lambda _name: None)
    plain = held_out(recipe)
    assert isinstance(quick, HeldOutSet)
    assert isinstance(plain, HeldOutSet)
    assert type(plain.model) is Cnn
    assert type(quick.model) is not Cnn
    data = encode_tensors(Cnn(recipe.model).init(1))
    found, expected = quick.evaluate(data), plain.evaluate(data)
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    assert (found.accuracy, found.count) == (expected.accuracy, 150)
