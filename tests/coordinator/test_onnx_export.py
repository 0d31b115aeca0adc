"""ONNX files: valid, and the same numbers as numpy's forward."""

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedagent_coordinator.errors import RefusedError
from fedagent_task.errors import TaskFormatError
from fedagent_task.models import create
from fedagent_task.models.features import scaled
from fedagent_task.recipe.spec import DataSpec, FeatureSpec, ModelSpec
from fedagent_task.recipe.text import Described, described, read_description
from fedagent_task.scoring.exported import open_model

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from fedagent_coordinator.onnx_export import OPSET, to_onnx  # noqa: E402 - after the skip

SPECS = [
    ModelSpec(kind="softmax", features=7, classes=4),
    ModelSpec(kind="logistic", features=7),
    ModelSpec(kind="linear", features=7),
    ModelSpec(kind="mlp", features=7, hidden=(9, 5), classes=3),
    ModelSpec(kind="cnn", layout="fashion", features=17 * 18 * 2, image=(17, 18, 2), classes=3),
    ModelSpec(kind="cnn", layout="cifar", features=16 * 16, image=(16, 16, 1), classes=3),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}{spec.layout}")
@settings(max_examples=3)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 20))
def test_a_file_is_valid_always_the_same_and_gives_what_forward_gives(
    spec: ModelSpec, seed: int, count: int
) -> None:
    model, rng = create(spec), np.random.default_rng(seed)
    weights = model.init(seed)
    x = rng.normal(size=(count, spec.features)).astype(np.float32)
    body = to_onnx(spec, weights)
    assert to_onnx(spec, weights) == body
    read = onnx.load_from_string(body)
    onnx.checker.check_model(read, full_check=True)
    assert [item.version for item in read.opset_import] == [OPSET]
    session = runtime.InferenceSession(body, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"x": x})
    expected = model.forward(weights, x)
    assert output.shape == expected.shape
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


SCALED = {
    "each": DataSpec(
        features=(
            FeatureSpec(name="pa", mean=101_325.0, deviation=500.0),
            FeatureSpec(name="lux", scale=1e-5, offset=-0.5),
            *(FeatureSpec(name=f"x{i}") for i in range(5)),
        )
    ),
    "all": DataSpec(scale=0.25, offset=-2.0),
    "none": DataSpec(),
}


@pytest.mark.parametrize("data", SCALED.values(), ids=SCALED)
@pytest.mark.parametrize("spec", SPECS[1:3], ids=lambda spec: spec.kind)
def test_a_file_takes_what_the_sensors_say_and_tells_what_that_is(
    spec: ModelSpec, data: DataSpec
) -> None:
    model = create(spec)
    weights = model.init(1)
    x = np.array([[101_900, 9e4, 1, 2, 3, 4, 5], [100_700, 10, 0, 0, 0, 0, 0]], np.float32)
    body = to_onnx(spec, weights, data, described(spec, data, round="7"))
    expected = model.forward(weights, scaled(x, data))
    onnx.checker.check_model(onnx.load_from_string(body), full_check=True)
    session = runtime.InferenceSession(body, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=2e-5, rtol=1e-4)
    told = session.get_modelmeta().custom_metadata_map
    assert told["fedagent.round"] == "7"
    assert read_description(told) == Described(spec, data)
    opened = open_model(body)
    np.testing.assert_allclose(opened.forward(x), expected, atol=2e-5, rtol=1e-4)
    tensors = safetensors.numpy.save(dict(weights), described(spec, data))
    np.testing.assert_array_equal(open_model(tensors).forward(x), expected)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (structs.replace(SPECS[1], features=6), "does not take 6 features as x"),
        (structs.replace(SPECS[1], kind="linear", classes=0), "does not give what its model gives"),
    ],
)
def test_a_file_whose_graph_is_not_what_it_says_is_one_error(told: ModelSpec, says: str) -> None:
    weights = create(SPECS[1]).init(1)
    body = to_onnx(SPECS[1], weights, DataSpec(), described(told, DataSpec()))
    with pytest.raises(TaskFormatError, match=says):
        open_model(body)


def test_two_classes_share_one_output_of_an_svm() -> None:
    weights = create(SPECS[1]).init(3)
    svm = structs.replace(SPECS[1], kind="svm")
    session = runtime.InferenceSession(to_onnx(svm, weights), providers=["CPUExecutionProvider"])
    x = np.eye(7, dtype=np.float32)
    (output,) = session.run(None, {"x": x})
    z = x @ weights["weight"].T + weights["bias"]
    np.testing.assert_allclose(output, np.hstack([-z, z]), atol=1e-6)


def test_a_kind_without_a_form_is_one_error() -> None:
    with pytest.raises(RefusedError, match=r"a mf model has no ONNX form; .* take safetensors"):
        to_onnx(structs.replace(SPECS[0], kind="mf"), create(SPECS[0]).init(0))
