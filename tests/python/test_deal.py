"""Arrays become a file and a stream for each device, and no sample is lost or doubled."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent import UsageError, deal
from fedagent_agent.streams import parse_stream


@given(
    agents=st.integers(1, 8),
    samples=st.integers(8, 60),
    gamma=st.none() | st.floats(0.05, 10),
    seed=st.integers(0, 2**31),
)
def test_every_sample_goes_to_one_device(
    agents: int, samples: int, gamma: float | None, seed: int
) -> None:
    x = np.arange(samples, dtype=np.float32)[:, None]
    y = np.arange(samples) % 4
    parts = deal.split((x, y), agents, dirichlet=gamma, seed=seed)
    assert len(parts) == agents
    assert sorted(np.concatenate([own[:, 0] for own, _ in parts])) == list(range(samples))
    for own, labels in parts:
        assert (own[:, 0] % 4 == labels).all()
    again = deal.split((x, y), agents, dirichlet=gamma, seed=seed)
    assert all((a == b).all() for (a, _), (b, _) in zip(parts, again, strict=True))


def test_held_out_samples_are_not_learnt_from() -> None:
    x, y = np.arange(50.0)[:, None], np.arange(50)
    (rest, _), (apart, labels) = deal.held_out((x, y), 0.2, seed=3)
    assert (len(rest), len(apart)) == (40, 10)
    assert not set(rest[:, 0]) & set(apart[:, 0])
    assert (apart[:, 0] == labels).all()


def test_a_device_has_its_whole_part_at_once(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(5000, 2, 3)), np.arange(5000) % 3
    path = deal.write(tmp_path / "data", "agent-1", deal.pair((x, y)))
    stream = parse_stream(deal.stream_of(path, 5000)).create(seed=1)
    assert stream.open(0.0).features == 6
    taken = stream.take(0.0)
    assert sorted(np.asarray(taken.x)[:, 0]) == sorted(
        x[:, 0, 0]
    )  # none dropped by the stream's buffer
    stream.close()


def test_names_of_classes_become_numbers() -> None:
    _, y = deal.pair((np.zeros((3, 1)), ["dog", "cat", "dog"]), ("cat", "dog"))
    assert y.tolist() == [1, 0, 1]


def test_a_tensor_is_an_array() -> None:
    torch = pytest.importorskip("torch")
    x, y = deal.pair((torch.ones(3, 2), torch.tensor([[1], [0], [1]])))
    assert (x.shape, y.tolist()) == ((3, 2), [1, 0, 1])


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ([["a"]], [1], "not an array of numbers"),
        (3.0, [1], "not an array of numbers"),
        ([[1.0]], [1, 2], "the labels do not fit: x has 1 samples, y is int64[2]"),
        (np.zeros((0, 2)), [], "the labels do not fit"),
        ([[1.0]], [[1.0, 2.0]], "the labels do not fit"),
        ((np.zeros((2, 1)), np.zeros((3, 1))), [1, 2], "different numbers of samples"),
        ([[1.0]], ["cow"], "y has 'cow', no label of the task; labels are: none"),
    ],
)
def test_what_does_not_fit_is_said(x: object, y: object, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        deal.pair((x, y))
    assert said in str(caught.value)


@pytest.mark.parametrize(("gamma", "y"), [(0.0, [1, 2]), (0.3, [1.5, 2.5])])
def test_only_classes_are_dealt_unevenly(gamma: float, y: list[float]) -> None:
    with pytest.raises(UsageError, match="dirichlet"):
        deal.split((np.zeros((2, 1)), np.array(y)), 2, dirichlet=gamma, seed=0)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 0.001])
def test_a_share_leaves_both_something(share: float) -> None:
    with pytest.raises(UsageError, match="hold out a share"):
        deal.held_out((np.zeros((9, 1)), np.zeros(9)), share, seed=0)


def test_a_folder_that_no_stream_can_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="comma"):
        deal.write(tmp_path / "a,b", "agent-1", (np.zeros((1, 1)), np.zeros(1)))
