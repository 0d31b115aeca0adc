"""How good a model is, in words: no number stands for what was not measured."""

import io

import pytest
from rich.console import Console

from fedagent_cli.demo.state import DemoState, Event
from fedagent_cli.demo.view import picture
from fedagent_cli.output import number_text
from fedagent_cli.runs import NOT_HELD_OUT, columns, metric_line
from fedagent_task.measures import (
    ACCURACY,
    DEVICE_SCORE,
    LOSS,
    MAE,
    RMSE,
    TRAIN_ERROR,
    TRAIN_LOSS,
    Measure,
)

CLASSES = (ACCURACY, LOSS, TRAIN_LOSS)
NUMBERS = (RMSE, MAE, LOSS, TRAIN_ERROR, TRAIN_LOSS)
TRAINED = {"train_error": 0.5, "train_loss": 0.125}


@pytest.mark.parametrize(
    ("measures", "metrics", "line"),
    [
        (CLASSES, {}, "accuracy: not measured yet"),
        (CLASSES, TRAINED, "accuracy: not measured yet"),
        (CLASSES, {"accuracy": 0.9, "loss": 0.25, **TRAINED}, "accuracy: 0.900, loss 0.250"),
        (
            NUMBERS,
            {"rmse": 0.4, "mae": 0.3, "loss": 0.16, **TRAINED},
            "error: 0.400 (rmse), 0.300 (mae), loss 0.160",
        ),
        (
            NUMBERS[3:],
            TRAINED,
            f"error: 0.500 in training, loss 0.125; {NOT_HELD_OUT}",
        ),
        (
            (TRAIN_LOSS,),
            TRAINED,
            f"loss: 0.125 in training; {NOT_HELD_OUT}",
        ),
        (
            (DEVICE_SCORE, TRAIN_LOSS),
            {"device_score": 0.75, **TRAINED},
            "score: 0.750 on the devices' new samples, training loss 0.125",
        ),
        (
            (),
            {},
            "accuracy: not measured: where neighbours decide, devices tell neither score nor loss",
        ),
    ],
)
def test_one_line_says_how_good_a_model_is(
    measures: tuple[Measure, ...], metrics: dict[str, float], line: str
) -> None:
    assert ": ".join(metric_line(measures, metrics)) == line


def test_a_table_shows_what_was_measured_and_what_is_primary_metric() -> None:
    assert columns(CLASSES, [{}]) == (ACCURACY,)
    assert columns(NUMBERS, [{"rmse": 1.0, "mae": 1.0, "loss": 1.0}, {}]) == (RMSE, LOSS)
    assert columns(NUMBERS[3:], [TRAINED]) == (TRAIN_ERROR, TRAIN_LOSS)
    assert columns((), [TRAINED]) == ()


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.000"), (1e-5, "1e-05"), (-2.5, "-2.500"), (23_456.78, "23456.8")]
)
def test_numbers_of_any_size_say_something(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("primary_metric", "said", "word", "figure"),
    [
        ("accuracy", {"event": "model", "accuracy": 0.75, "loss": 1.0}, "accuracy", 0.75),
        ("rmse", {"event": "model", "accuracy": None, "loss": 4.0, "rmse": 2.0}, "error", 2.0),
        ("train_error", {"event": "round", "train_loss": 8.0}, "training error", 4.0),
        ("device_score", {"event": "round", "device_score": 0.5}, "on devices", 0.5),
    ],
)
def test_the_demo_shows_what_its_run_is_primary_metric(
    primary_metric: str, said: Event, word: str, figure: float
) -> None:
    state = DemoState(3, {}, {})
    state.apply("coordinator", {"event": "ready", "primary_metric": primary_metric}, 0.0)
    state.apply("coordinator", {"event": "model", "accuracy": None, "loss": None}, 1.0)
    assert state.figures == []
    state.apply("coordinator", said, 1.0)
    assert state.figures == [figure]
    text = io.StringIO()
    Console(width=100, file=text).print(picture(state, 3.0))
    assert word in text.getvalue()
    assert number_text(figure) in text.getvalue()
