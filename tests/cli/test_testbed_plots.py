"""The curves of a comparison say what its table says."""

import numpy as np
import pytest

from fedagent_cli.study import plots
from fedagent_testbed.study import Comparison, compare, load_recipe

pytest.importorskip("matplotlib", reason="plots need matplotlib (extra plots)")

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

SMALL = ("world.clients=10", "world.edges=2", "rounds.count=20")


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare(load_recipe("cocs-decisions", SMALL), ["cheapest"], seeds=3)


@pytest.fixture
def axes() -> Axes:
    return Figure().subplots()


def band_at(axes: Axes, x: float) -> tuple[float, float]:
    """Return lowest and highest point of the first band at this place."""
    (band,) = (one for one in axes.collections if isinstance(one, PolyCollection))
    corners = np.asarray(band.get_paths()[0].vertices)
    here = corners[corners[:, 0] == x, 1]
    return float(here.min()), float(here.max())


def test_the_band_is_the_interval_of_the_table(compared: Comparison, axes: Axes) -> None:
    (_, _, utility), *_ = plots._of_selection(compared)
    utility(axes)
    wanted = compared.figures("cheapest")["utility"]
    assert wanted.mean is not None
    assert wanted.ci95 is not None
    low, high = band_at(axes, 20)
    assert (high + low) / 2 == pytest.approx(wanted.mean)
    assert (high - low) / 2 == pytest.approx(wanted.ci95, rel=1e-6)
