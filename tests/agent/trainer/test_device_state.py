"""What a device keeps over rounds and restarts, and what happens when it is lost."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_agent.trainer.device_state import KEPT
from fedagent_agent.trainer.training import Trainer
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe.spec import Recipe
from tests.fakes.trainer_bench import TrainerBench, demo

STREAM = "digits:start=80,rate=0.001"


def _task() -> Recipe:
    return demo("aggregation.name=scaffold", "learner.name=bgd", "learner.passes=2")


def _begin(bench: TrainerBench) -> TrainerBench:
    """Open the task; its model's file has control variates of 0."""
    bench.opened(_task(), STREAM)
    base = create(_task().model).init(0)
    controls = {f"control/{name}": np.zeros_like(tensor) for name, tensor in base.items()}
    bench.base({**base, **controls})
    return bench


def _restarted(bench: TrainerBench) -> TrainerBench:
    return _begin(bench.on(Trainer(lambda _job, _wait: False)))


def test_a_restarted_trainer_goes_on_with_what_was_kept(
    bench: TrainerBench, tmp_path: Path
) -> None:
    state = str(tmp_path / "state" / "run-task")
    first = _begin(bench).trained(state=state, round=1)
    second = bench.trained(state=state, round=2)
    assert second.digest != first.digest, "c_i corrects the second round"
    kept = Path(state).read_bytes()
    assert (
        _restarted(bench).trained(state=f"{state}-of-another-run", round=1).digest == first.digest
    )
    Path(state).write_bytes(kept)
    third = _restarted(bench).trained(state=state, round=3)
    assert third.digest not in (first.digest, second.digest)
    assert "state_lost" not in third.counters


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff" * 40,
        encode_tensors({"control/bias": np.full(10, np.nan, np.float32)}),
        encode_tensors({"control/bias": np.ones(1, np.float32)}),
    ],
)
def test_a_damaged_file_begins_anew_and_is_counted(
    damage: bytes, bench: TrainerBench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    first = _begin(bench).trained(state=str(state), round=1)
    state.write_bytes(damage)
    again = _restarted(bench).trained(state=str(state), round=2)
    assert again.digest == first.digest
    assert again.counters == {"state_lost": 1}
    assert "starts again from nothing" in caplog.text
    assert bench.trained(state=str(state), round=3).digest != first.digest


def test_files_of_old_runs_go(bench: TrainerBench, tmp_path: Path) -> None:
    _begin(bench)
    for number in range(KEPT + 3):
        bench.trained(state=str(tmp_path / "states" / str(number)))
    names = {path.name for path in (tmp_path / "states").iterdir()}
    assert names == {str(number) for number in range(3, KEPT + 3)}


def test_a_training_that_failed_leaves_no_trace(
    bench: TrainerBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that fails when its state is to be kept: c_i has moved by then."""
    state = str(tmp_path / "state")
    _begin(bench).trained(state=state, round=1)
    expected = bench.trained(state=state, round=2).digest
    Path(state).unlink()
    _restarted(bench).trained(state=state, round=1)
    bench.failed("model", state=state, model=f"{bench.model}.none")
    with monkeypatch.context() as full:
        full.setattr("fedagent_agent.trainer.device_state.write_private", _refuse)
        bench.failed("disk", state=state)
    assert bench.trained(state=state, round=2).digest == expected


def _refuse(_path: Path, _data: bytes) -> None:
    raise OSError(28, "No space left on device")
