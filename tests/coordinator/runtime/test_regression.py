"""A run that learns a number: evaluated by its error, on held-out samples or by its devices."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.store import Store
from fedagent_protocol import messages as m

from .harness import Site, recipe, toy_edges

LINEAR = ("model.kind=linear", "model.features=2", "model.classes=0", "data.scale=1.0")


def told(loss: float) -> m.Outcome:
    return m.Outcome(
        agent="agent-0-0",
        status=m.OutcomeStatus.ARRIVED,
        in_time=True,
        used=True,
        valid=True,
        weight=10.0,
        tau_ms=50,
        stats=m.TrainStats(num_samples=10, loss=loss),
    )


def test_the_best_model_of_a_regression_is_that_of_least_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2)).astype(np.float32)
    np.savez(tmp_path / "room.npz", x=x, y=x @ np.array([2.0, -1.0]) + 20.0)
    given = recipe(*LINEAR, f"evaluation.dataset='{tmp_path}/room.npz'")
    site = Site(tmp_path / "c", given, toy_edges(given))
    site.run()
    site.close()
    end = site.events[-1].fields
    said = [event.fields for event in site.events if event.name == "model"]
    errors = [float(str(one["rmse"])) for one in said]
    assert len(said) == 4
    assert min(errors) > 0
    assert all(one["accuracy"] is None for one in said)
    assert (end["accuracy"], end["primary_metric"]) == (None, "rmse")
    result = json.loads((tmp_path / "c" / "result.json").read_text())
    metrics = result["metrics"]
    assert end["metrics"] == metrics
    assert metrics["rmse"] == errors[-1]
    assert metrics["loss"] == pytest.approx(metrics["rmse"] ** 2) == end["loss"]
    assert 0 < metrics["mae"] <= metrics["rmse"]
    assert (result["best"], result["best_accuracy"]) == (min(errors), None)
    with Store(tmp_path / "c") as store:
        best = store.read.models.best(store.read.run().run_id)
        assert best is not None
        assert best.round == 1 + errors.index(min(errors)) == result["best_round"]
        assert best.digest in store.read.models.to_keep(last=1)


def test_without_held_out_samples_a_run_is_primary_metric_its_training(tmp_path: Path) -> None:
    given = recipe(*LINEAR, "evaluation.dataset=none")
    edges = toy_edges(given, agents=1)
    edges[0].agents[0].outcome = told(8.0)
    site = Site(tmp_path, given, edges)
    site.run()
    site.close()
    end = site.events[-1].fields
    assert (end["accuracy"], end["loss"], end["primary_metric"]) == (None, None, "train_error")
    assert end["metrics"] == {"train_loss": 8.0, "train_error": 4.0}
    with Store(tmp_path) as store:
        rows = store.read.rounds(store.read.run().run_id)
        assert all(math.isclose(row.metrics["train_error"], 4.0) for row in rows)
        assert store.read.models.rows(store.read.run().run_id)[0].metrics["train_loss"] == 8.0
