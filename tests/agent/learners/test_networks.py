"""Neural networks on a device: the same update by numpy and by torch, and what stands in."""

import sys

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.learners import create, instead_of, steps
from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Mlp
from fedagent_task.models import create as create_model
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec

MLP = ModelSpec(kind="mlp", features=8, hidden=(12, 6), classes=3, l2=0.01)
CNN = ModelSpec(kind="cnn", layout="fashion", features=17 * 18, image=(17, 18, 1), classes=3)


def _update(
    model: ModelSpec, name: str, backend: str, seed: int, count: int = 60
) -> dict[str, npt.NDArray[np.float32]]:
    spec = msgspec.structs.replace(LearnerSpec(rate=0.05, batch=20), name=name, backend=backend)
    rng = np.random.default_rng(seed)
    learner = create(create_model(model), spec, np.random.default_rng(seed))
    x = rng.normal(size=(count, model.features)).astype(np.float32)
    learner.begin(create_model(model).init(seed))
    learner.absorb(x, rng.integers(0, model.classes, count))
    learner.step(3)
    return learner.update()


@settings(max_examples=5)
@given(model=st.sampled_from([MLP, CNN]), seed=st.integers(0, 2**31))
def test_torch_gives_the_gradient_that_numpy_gives(model: ModelSpec, seed: int) -> None:
    """In float64: no two roundings choose different sides of a rectifier or of a pool."""
    pytest.importorskip("torch", reason="torch is not installed")
    import torch

    from fedagent_agent.learners.torch_steps import TorchNetwork, shared

    plain, rng = create_model(model), np.random.default_rng(seed)
    assert isinstance(plain, Mlp)
    weights = {name: tensor.astype(np.float64) for name, tensor in plain.init(seed).items()}
    x, y = rng.normal(size=(20, model.features)), rng.integers(0, model.classes, 20)
    slopes = plain.loss_and_gradient(weights, x, y)[1]
    assert all(np.abs(slope).max() > 1e-4 for slope in slopes.values())
    leaves = {name: shared(tensor).requires_grad_() for name, tensor in weights.items()}
    loss = TorchNetwork(model).loss(leaves, shared(x), torch.from_numpy(y))
    for tensor, slope in zip(leaves, torch.autograd.grad(loss, leaves.values()), strict=True):
        np.testing.assert_allclose(slope, slopes[tensor], rtol=1e-9, atol=1e-12)


def test_a_perceptron_is_learnt_without_torch_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch")]:
        monkeypatch.delitem(sys.modules, name)
    for module in ("torch_steps",):
        monkeypatch.delitem(sys.modules, f"fedagent_agent.learners.{module}", raising=False)
    _update(MLP, "minibatch", "auto", seed=0)
    assert "torch" not in sys.modules


def test_without_torch_a_cnn_is_learnt_in_numpy_and_a_task_that_wants_torch_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "find_spec", lambda _name: None)
    expected = _update(CNN, "sgd", "numpy", seed=1)
    for name, delta in _update(CNN, "sgd", "auto", seed=1).items():
        np.testing.assert_array_equal(delta, expected[name])
    with pytest.raises(TaskFormatError) as caught:
        _update(MLP, "sgd", "torch", seed=1)
    assert caught.value.key == "learner.backend"
    assert "`fedagent doctor`" in str(caught.value)


def test_strsaga_gives_way_on_networks_only() -> None:
    spec = msgspec.structs.replace(LearnerSpec(), name="strsaga")
    convex = ModelSpec(kind="softmax", features=8, classes=3)
    assert instead_of(MLP, spec) == instead_of(CNN, spec) == "minibatch"
    assert instead_of(convex, spec) is None
    assert instead_of(MLP, LearnerSpec()) is None
    by_strsaga = _update(MLP, "strsaga", "numpy", seed=4)
    for name, delta in _update(MLP, "minibatch", "numpy", seed=4).items():
        np.testing.assert_array_equal(by_strsaga[name], delta)
