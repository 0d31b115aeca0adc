"""The mean of edge models, and the evaluating of the global one: by either engine the same."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.core.effects import Merge, Merged
from fedagent_coordinator.global_model import HeldOutSet, held_out
from fedagent_coordinator.merged_models import merge_files
from fedagent_node.blobs import BlobStore
from fedagent_protocol.tensors import Manifest, decode_tensors, digest_of, encode_tensors
from fedagent_task import models
from fedagent_task.errors import DatasetError
from fedagent_task.models import Cnn
from fedagent_task.recipe.text import parse_recipe
from tests.fakes.coordinator_site import recipe

SHAPES = {"bias": (3,), "weight": (3, 4)}
MANIFEST = Manifest.of({name: np.zeros(s, np.float32) for name, s in SHAPES.items()})


def model(seed: int, scale: float = 1.0) -> bytes:
    rng = np.random.default_rng(seed)
    return encode_tensors(
        {n: (scale * rng.normal(size=s)).astype(np.float32) for n, s in SHAPES.items()}
    )


def merged(blobs: BlobStore, parts: list[bytes], weights: list[float]) -> Merged:
    for data in parts:
        blobs.put(data)
    models = tuple(zip(map(digest_of, parts), weights, strict=True))
    return merge_files(blobs, MANIFEST, Merge(1, models, 0))


@settings(max_examples=30)
@given(weights=st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=5), scale=st.floats(1e-3, 1e30))
def test_it_is_the_weighted_mean_in_float64(weights: list[float], scale: float) -> None:
    parts = [model(i, scale) for i in range(len(weights))]
    with tempfile.TemporaryDirectory() as folder:
        blobs = BlobStore(Path(folder))
        got = decode_tensors(blobs.get(merged(blobs, parts, weights).digest), MANIFEST)
    for name in SHAPES:
        stack = np.stack([decode_tensors(d, MANIFEST)[name].astype(np.float64) for d in parts])
        want = np.average(stack, axis=0, weights=weights)
        assert np.allclose(got[name].astype(np.float64), want, rtol=1e-6, atol=1e-6 * scale)


def test_models_that_do_not_fit_are_left_out_and_one_that_remains_is_the_mean(
    tmp_path: Path,
) -> None:
    good, blobs = model(1), BlobStore(tmp_path)
    nan = encode_tensors({n: np.full(s, np.nan, np.float32) for n, s in SHAPES.items()})
    other = encode_tensors({"weight": np.zeros((3, 4), np.float32)})
    found = merged(blobs, [nan, good, other, b"garbage"], [1.0] * 4)
    assert found.digest == digest_of(good)
    assert found.refused[digest_of(nan)] == "non_finite"
    assert found.refused[digest_of(other)].startswith("manifest_mismatch")
    assert len(found.refused) == 3
    assert merged(blobs, [nan], [1.0]).digest == ""


def test_the_held_out_set_evaluates_a_model() -> None:
    given_recipe = recipe()
    evaluate = held_out(given_recipe)
    assert evaluate is not None
    start = encode_tensors(models.create(given_recipe.model).init(3))
    found = evaluate.evaluate(start)
    assert found.count > 300
    assert found.accuracy is not None
    assert 0.0 <= found.accuracy < 0.5
    assert held_out(recipe("evaluation.dataset=none")) is None
    with pytest.raises(DatasetError, match="features"):
        held_out(recipe("model.features=63"))


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
    monkeypatch.setattr("fedagent_coordinator.global_model.find_spec", lambda _name: None)
    plain = held_out(recipe)
    assert isinstance(quick, HeldOutSet)
    assert isinstance(plain, HeldOutSet)
    assert type(plain.model) is Cnn
    assert type(quick.model) is not Cnn
    data = encode_tensors(Cnn(recipe.model).init(1))
    found, expected = quick.evaluate(data), plain.evaluate(data)
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    assert (found.accuracy, found.count) == (expected.accuracy, 150)
