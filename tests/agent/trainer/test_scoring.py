"""Scores of a base model on new samples: before they are learnt from, with either engine."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.trainer import scoring
from fedagent_agent.trainer.scoring import MAX_SAMPLES, Scorer
from fedagent_task.errors import TaskFormatError
from fedagent_task.models import Mlp, create
from fedagent_task.recipe.spec import DataSpec, LearnerSpec, ModelSpec, OpinionsSpec, TaskSpec
from tests.fakes.trainer_bench import TrainerBench

pytest.importorskip("onnx", reason="onnx is not installed")

from fedagent_coordinator.onnx_export import to_graph

MLP = ModelSpec(kind="mlp", features=64, hidden=(16,), classes=10)
CNN = ModelSpec(kind="cnn", layout="fashion", features=17 * 18, image=(17, 18, 1), classes=3)
DIGITS = DataSpec(dtype="uint8", scale=1 / 16)


def _scorer(spec: ModelSpec, *, graph: bool = False, on_device: bool = True) -> Scorer:
    task = TaskSpec(model=spec, on_device=on_device, onnx=to_graph(spec) if graph else b"")
    return Scorer(task, create(spec))


def test_a_classifiers_score_is_its_accuracy_over_all_arrivals() -> None:
    model, rng = create(MLP), np.random.default_rng(0)
    weights = model.init(0)
    x = rng.normal(size=(30, 64)).astype(np.float32)
    y = model.forward(weights, x).argmax(axis=1).copy()
    y[:6] = (y[:6] + 1) % 10
    scorer = _scorer(MLP)
    scorer.begin(weights)
    assert (scorer.score, scorer.count) == (0.0, 0)
    for part in (slice(0, 10), slice(10, 10), slice(10, 30)):
        scorer.look(x[part], y[part])
    assert scorer.count == 30
    assert scorer.score == pytest.approx(0.8)
    scorer.begin(weights)
    assert scorer.count == 0


def test_a_regressions_score_falls_with_its_error_and_stays_in_range() -> None:
    spec = ModelSpec(kind="linear", features=2)
    scorer = _scorer(spec)
    weights = {"weight": np.zeros((1, 2), np.float32), "bias": np.zeros(1, np.float32)}
    for y, score in (([0.0, 0.0], 1.0), ([3.0, -3.0], 0.25), ([1e200, 1e200], 0.0)):
        scorer.begin(weights)
        with np.errstate(over="ignore"):
            scorer.look(np.zeros((2, 2), np.float32), np.array(y))
        assert scorer.score == pytest.approx(score)
        assert math.isfinite(scorer.score)


def test_what_is_scored_of_a_flood_is_spread_over_all_of_it() -> None:
    model, rng = create(MLP), np.random.default_rng(3)
    weights, scorer = model.init(0), _scorer(MLP)
    x = rng.normal(size=(4 * MAX_SAMPLES, 64)).astype(np.float32)
    y = model.forward(weights, x).argmax(axis=1).copy()
    y[: 3 * MAX_SAMPLES] = (y[: 3 * MAX_SAMPLES] + 1) % 10
    scorer.begin(weights)
    scorer.look(x, y)
    assert scorer.score == pytest.approx(0.25, abs=0.002)


def test_where_neighbours_decide_no_order_is_scored_whatever_the_task_says() -> None:
    task = TaskSpec(model=MLP, on_device=True, opinions=OpinionsSpec(mode="peers"))
    scorer, five = Scorer(task, create(MLP)), np.zeros((5, 64), np.float32)
    scorer.begin(create(MLP).init(0))
    scorer.look(five, np.zeros(5))
    assert scorer.count == 0
    scorer.add(five, np.zeros(5))
    assert scorer.count == 5, "for itself it does"


@settings(max_examples=10, deadline=None)
@given(spec=st.sampled_from([MLP, CNN]), seed=st.integers(0, 2**31), count=st.integers(1, 150))
def test_onnxruntime_scores_as_numpy_does(spec: ModelSpec, seed: int, count: int) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from fedagent_task.scoring.onnx_session import OnnxSession

    model, rng = create(spec), np.random.default_rng(seed)
    weights = model.init(seed)
    x = rng.normal(size=(count, spec.features)).astype(np.float32)
    assert isinstance(model, Mlp)
    session = OnnxSession(to_graph(spec), model)
    assert session.forward(weights, x[:0]).shape == (0, spec.classes)
    np.testing.assert_allclose(session.forward(weights, x), model.forward(weights, x), atol=1e-5)


def test_the_graph_of_the_task_is_used_where_there_is_a_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    weights, x = create(CNN).init(0), np.ones((4, CNN.features), np.float32)
    y = create(CNN).forward(weights, x).argmax(axis=1)
    for there in (True, False):
        if not there:
            monkeypatch.setattr(scoring, "find_spec", lambda _name: None)
        else:
            monkeypatch.delitem(sys.modules, "fedagent_task.scoring.onnx_session", raising=False)
        scorer = _scorer(CNN, graph=True)
        assert ("fedagent_task.scoring.onnx_session" in sys.modules) or not there
        scorer.begin(weights)
        scorer.look(x, y)
        assert (scorer.score, scorer.count) == (1.0, 4)


@pytest.mark.parametrize("graph", [b"no graph", b"\x08\x08", to_graph(MLP)])
def test_a_graph_of_something_else_is_refused_by_key(bench: TrainerBench, graph: bytes) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    with pytest.raises(TaskFormatError) as caught:
        Scorer(TaskSpec(model=CNN, on_device=True, onnx=graph), create(CNN))
    assert caught.value.key == "onnx"
    task = TaskSpec(model=MLP, on_device=True, onnx=b"no graph", data=DIGITS)
    assert bench.refused(task).key == "onnx"


@pytest.mark.parametrize("graph", [False, True])
def test_the_trainer_scores_the_base_before_it_learns(bench: TrainerBench, graph: bool) -> None:
    if graph:
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    task = TaskSpec(
        model=MLP,
        data=DIGITS,
        learner=LearnerSpec(rate=0.3, batch=50, buffer=1000),
        on_device=True,
        onnx=to_graph(MLP) if graph else b"",
    )
    bench.opened(task, "digits:rate=100000,start=500", seed=3)
    weights, scores = create(MLP).init(0), []
    for _ in range(2):
        bench.base(weights)
        stats = bench.trained(iterations=10).stats
        assert 0 < stats.score_n <= min(MAX_SAMPLES, stats.arrivals)
        scores.append(stats.score)
        delta = bench.update()
        weights = {n: t + delta[n].astype(np.float32) for n, t in weights.items()}
    # Ten classes: the first model guesses, the second has learnt.
    assert scores[0] < 0.35
    assert scores[1] > 0.8
