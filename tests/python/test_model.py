"""The models of a run, ready for samples."""

import numpy as np
import pytest

import fedagent
from fedagent import Run

from .runs import samples


def test_it_has_learnt_and_says_so_by_name(run: Run) -> None:
    assert run.metrics["accuracy"] > 0.9
    x, y = samples(200)
    model = run.load_model()
    assert np.mean(model.predict(x) == y) > 0.9
    assert (model.round, model.labels) == (4, ("minus", "plus"))
    assert model.scores(x).sum(axis=1) == pytest.approx(1.0)
    earlier = run.load_model(1)
    assert earlier.metrics["accuracy"] <= model.metrics["accuracy"]
    assert not np.array_equal(earlier.tensors["weight"], model.tensors["weight"])


def test_a_built_in_kind_is_no_module(run: Run) -> None:
    with pytest.raises(fedagent.UsageError, match="a logistic is no torch module"):
        _ = run.load_model().module
