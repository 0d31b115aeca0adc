"""A run that learns a number, as the commands that read it show it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedagent_cli.main import app
from tests.fakes.written_runs import RECIPE, write_run


@pytest.mark.parametrize(
    ("dataset", "metric", "key", "line", "head"),
    [
        ("room.npz", "loss", "rmse", "error     0.894 (rmse), loss 0.800", "error"),
        ("none", "train_loss", "train_error", "error     1.265 in training", "training error"),
    ],
)
def test_its_error_stands_where_accuracy_does(
    tmp_path: Path, dataset: str, metric: str, key: str, line: str, head: str
) -> None:
    recipe = RECIPE.replace('"softmax", features = 64, classes = 10', '"linear", features = 64')
    write_run(tmp_path, recipe=recipe.replace("digits-test", dataset), metric=metric)

    def typed(*words: str) -> str:
        given = [*words, "--data-dir", str(tmp_path)]
        done = CliRunner().invoke(app.group, given, catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    read = json.loads(typed("status", "--json"))
    assert (read["accuracy"], read["primary_metric"]) == (None, key)
    assert set(read["metrics"]) == {metric, key}
    assert line in typed("status")
    for command in (("rounds",), ("models", "list")):
        shown = typed(*command)
        assert head in shown.splitlines()[0]
        assert "accuracy" not in shown
    assert f"{head} " in typed("runs")
    (model,) = json.loads(typed("models", "list", "--json"))["models"]
    assert model["metrics"][key] == read["metrics"][key]
