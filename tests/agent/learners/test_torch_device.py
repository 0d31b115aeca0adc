"""Where torch computes: what a device has, and what is refused with the hint."""

import os

import pytest

from fedagent_task.errors import TaskFormatError
from fedagent_task.recipe.spec import LearnerSpec

torch = pytest.importorskip("torch", reason="torch is not installed")

from fedagent_agent.learners import torch_steps  # noqa: E402 - torch comes with it


def _has(monkeypatch: pytest.MonkeyPatch, *, cuda: bool = False, mps: bool = False) -> None:
    """No machine of the tests has one: the choice is tested, not the chip."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_auto_takes_cuda_then_mps_then_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, expected in (
        (True, True, "cuda"),
        (False, True, "mps"),
        (False, False, "cpu"),
    ):
        _has(monkeypatch, cuda=cuda, mps=mps)
        assert torch_steps.device_of(LearnerSpec()).type == expected
        assert torch_steps.device_of(LearnerSpec(device="cpu")).type == "cpu"


@pytest.mark.parametrize(
    ("spec", "key", "hint"),
    [
        (LearnerSpec(device="cuda"), "learner.device", "write auto"),
        (LearnerSpec(device="mps"), "learner.device", "write auto"),
        (LearnerSpec(precision="float16"), "learner.precision", "write bfloat16"),
    ],
)
def test_what_is_not_here_is_refused_with_the_mend(
    spec: LearnerSpec, key: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _has(monkeypatch)
    with pytest.raises(TaskFormatError, match=hint) as caught:
        torch_steps.device_of(spec)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("wanted", "most", "named", "expected"),
    [(0, 0, "", 3), (2, 0, "", 2), (9, 0, "", 4), (0, 1, "", 1), (0, 0, "2", 2), (4, 0, "x", 4)],
)
def test_threads_are_the_machines_below_what_its_owner_allows(
    wanted: int, most: int, named: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    assert torch_steps.thread_count(wanted, most) == expected
