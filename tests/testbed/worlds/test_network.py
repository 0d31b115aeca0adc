"""The network of a streaming study: within its ranges, and the same by seed."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_task.errors import DatasetError, RecipeError
from fedagent_task.recipe.spec import MICRO
from fedagent_testbed.study.streams import best_edge
from fedagent_testbed.worlds.network import StreamNetwork, draw_network
from tests.fakes.stream_files import small

pytestmark = pytest.mark.usefixtures("stream_data")


def test_everything_is_within_the_recipes_ranges_and_moves() -> None:
    drawn = draw_network(small("world.edges=8"), 3)
    assert drawn.rate_bps.shape == drawn.rtt_s.shape == (12, 4, 8)
    for table, unit, low, high in (
        (drawn.rate_bps, 8e3, 155, 3939),
        (drawn.rtt_s, 1e-3, 81, 1413),
        (drawn.rent_micro, MICRO, 0.1045, 13.2),
    ):
        assert low <= table.min() / unit <= table.max() / unit <= high
        assert (table.std(axis=0) > 0).any()
    assert (drawn.slowness > 0).all()
    rents = drawn.rent_micro.mean(axis=0) / MICRO
    assert rents.min() < 0.3
    assert rents.max() > 3, "means span the range"


def test_a_device_that_throttles_is_so_many_times_as_slow_and_nothing_else_changes() -> None:
    hot = (
        "world.streaming.throttle=8",
        "world.streaming.throttle_every=5",
        "world.streaming.throttle_rounds=2",
    )
    plain, drawn = draw_network(small(), 3), draw_network(small(*hot), 3)
    times = drawn.slowness / plain.slowness
    slow = np.isclose(times, 8.0)
    assert (slow | np.isclose(times, 1.0)).all()
    assert slow.any(axis=0).all()
    assert len({tuple(device) for device in slow.T.tolist()}) > 1, "each at its own time"
    np.testing.assert_array_equal(plain.rate_bps, drawn.rate_bps)
    np.testing.assert_array_equal(plain.rent_micro, drawn.rent_micro)


def test_cost_is_transfers_both_ways_and_aggregation() -> None:
    rate, rtt = np.full((1, 2, 2), 8e6), np.array([[[0.1, 0.2], [0.3, 0.4]]])
    network = StreamNetwork(
        rate, rtt, np.ones((1, 2), np.int64), np.ones((1, 2)), np.array([0.5, 1.0])
    )
    np.testing.assert_allclose(network.transfer_s(1e6), [[4 + 0.4, 4 + 0.6]])
    np.testing.assert_allclose(network.cost_s(1e6), [[4 + 0.4 + 1, 4 + 0.6 + 2]])


def test_the_best_edge_is_the_fastest_that_can_be_paid_to_the_end() -> None:
    rate = np.full((2, 1, 3), 8e6)
    rtt = np.tile(np.array([0.1, 0.2, 0.3]), (2, 1, 1))
    rent = np.array([[9, 2, 1], [9, 2, 1]], dtype=np.int64)
    network = StreamNetwork(rate, rtt, rent, np.ones((2, 1)), np.zeros(3))
    assert best_edge(network, 0, 18) == 0
    assert best_edge(network, 0, 17) == 1
    assert best_edge(network, 0, 3) == 2
    assert best_edge(network, 0, 1) == 2


def test_data_that_are_missing_name_the_hint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDAGENT_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match=r"is not in FEDAGENT_DATA; see docs/testbed\.md"):
        draw_network(small(), 0)
    monkeypatch.delenv("FEDAGENT_DATA")
    with pytest.raises(DatasetError, match="set FEDAGENT_DATA"):
        draw_network(small(), 0)


def test_what_the_data_do_not_have_is_refused() -> None:
    with pytest.raises(RecipeError, match="12 nodes"):
        draw_network(small("world.edges=9"), 0)
