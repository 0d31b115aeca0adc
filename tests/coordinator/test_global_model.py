"""The mean of edge models, and the evaluating of the global one."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.core.effects import Merge, Merged
from fedagent_coordinator.merged_models import merge_files
from fedagent_coordinator.runs import held_out
from fedagent_node.blobs import BlobStore
from fedagent_protocol.tensors import Manifest, decode_tensors, digest_of, encode_tensors
from fedagent_task import models
from fedagent_task.errors import DatasetError
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
