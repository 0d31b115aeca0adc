"""A torch module from Python: rounds of real devices, and a module again."""

from typing import Any

import numpy as np
import pytest

import fedagent
from fedagent import Run, Task, run_local

torch = pytest.importorskip("torch")
nn: Any = torch.nn


def digits() -> tuple[Any, Any]:
    x, y = fedagent.load_data("digits-train")
    return (x / 16).astype(np.float32), y


def network() -> Any:
    image = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
    return nn.Sequential(image, nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(512, 10))


def task_of(module: Any, **more: Any) -> Task:
    example = torch.rand(8, 64), torch.randint(0, 10, (8,))
    learner = {"rate": 0.1, "batch": 32, "passes": 2}
    return Task(module, nn.functional.cross_entropy, example, learner=learner, **more)


slow = pytest.mark.slow  # three devices, and this process, import torch


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.manual_seed(1)
    return run_local(
        task_of(network(), labels=[f"the {i}" for i in range(10)]),
        agents=3,
        rounds=3,
        data=digits(),
        test=0.2,
        folder=tmp_path_factory.mktemp("runs") / "graph",
        progress=False,
    )


@slow
def test_it_learns_live(run: Run) -> None:
    assert run.rounds == 3
    assert run.metrics["accuracy"] > 0.8
    # On a busy machine a first training may miss its deadline: 0.
    assert set(map(int, map(str, run.read().orders["num_samples"]))) - {0} == {383, 384}


@slow
def test_the_model_is_a_module_again(run: Run) -> None:
    x, y = digits()
    model = run.load_model()
    predicted = model.predict(x)
    assert np.mean(predicted == [f"the {i}" for i in y]) > 0.8
    with torch.no_grad():
        output = model.module(torch.tensor(x)).softmax(1).numpy()
    assert output == pytest.approx(model.scores(x), abs=1e-5)
    own = network()
    own.load_state_dict(model.module.state_dict())
    own.eval()
    with torch.no_grad():
        assert own(torch.tensor(x)).softmax(1).numpy() == pytest.approx(output, abs=1e-5)


def test_samples_of_another_width_are_said(run: Run) -> None:
    x, _ = digits()
    with pytest.raises(fedagent.UsageError, match="x has 10 numbers a sample, the model takes 64"):
        run.load_model().predict(x[:, :10])
