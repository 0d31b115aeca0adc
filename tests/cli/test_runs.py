"""A run in words: how good its models are, what is waited for, when the next round is due."""

import pytest

from fedagent_cli.read.runs import NOT_HELD_OUT, metric_line
from fedagent_task.scoring.measures import (
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
            (DEVICE_SCORE, TRAIN_LOSS),
            {"device_score": 0.75, **TRAINED},
            "score: 0.750 on the devices' new samples, training loss 0.125",
        ),
        (
            (),
            {},
            "accuracy: not measured: if neighbours decide, devices report neither score nor loss",
        ),
    ],
)
def test_one_line_says_how_good_a_model_is(
    measures: tuple[Measure, ...], metrics: dict[str, float], line: str
) -> None:
    assert ": ".join(metric_line(measures, metrics)) == line
