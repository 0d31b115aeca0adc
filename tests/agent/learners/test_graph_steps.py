"""Models that travel as graphs, learnt on a device: what plain torch does on the same batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from fedagent_agent.learners import Learner, Tensors, create
from fedagent_agent.learners.base import FailedTrainingError
from fedagent_agent.learners.user import UserLearner, create_held
from fedagent_agent.trainer.frames import Failed, Open, Opened, Train, Trained
from fedagent_agent.trainer.training import Trainer
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.models import create as create_model
from fedagent_task.program import encode_program
from fedagent_task.recipe.spec import AggregationSpec, DataSpec, LearnerSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes
from fedagent_task.task_file import TaskFile, task_of_program
from tests.fakes.graph_tasks import dense_task

torch = pytest.importorskip("torch", reason="torch is not installed")

from fedagent_agent.learners.torch_steps import HeldInTorch  # noqa: E402 - torch comes with it
from fedagent_task.program.export import build  # noqa: E402 - the same
from fedagent_task.program.source import TaskSource  # noqa: E402 - the same

nn = torch.nn
FORMS: tuple[dict[str, object], ...] = (
    {},
    {"momentum": 0.9, "weight_decay": 0.01},
    {"optimizer": "adamw", "rate": 0.01, "clip_norm": 0.5},
)


def _module(dropout: float = 0.0) -> Any:
    torch.manual_seed(1)
    return nn.Sequential(
        # Batch norm takes a bias out again: AdamW would scale the rounding of its gradient up.
        nn.Linear(8, 12, bias=False),
        nn.BatchNorm1d(12),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(12, 3),
    )


def _task(module: Any, local: Sequence[str] = (), features: int = 8, classes: int = 3) -> TaskFile:
    example = (torch.randn(4, features), torch.randint(0, classes, (4,)))
    built = build(TaskSource(module, nn.functional.cross_entropy, example, local=local))
    return task_of_program(encode_program(built.program), built.tensors, classes=built.classes)


def _samples(count: int = 30) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    rng = np.random.default_rng(2)
    return rng.normal(size=(count, 8)).astype(np.float32), rng.integers(0, 3, count)


def _learner(task: TaskFile, strategy: str = "fedavg", **keys: object) -> Learner:
    spec = msgspec.structs.replace(LearnerSpec(name="sgd", batch=10, device="cpu"), **keys)
    return create(
        create_model(task.model),
        spec,
        np.random.default_rng(0),
        aggregation=AggregationSpec(name=strategy),
        once=dict(task.once),
    )


def _controls(first: Tensors, names: Sequence[str]) -> dict[str, npt.NDArray[np.float32]]:
    return {f"control/{name}": np.zeros_like(first[name]) for name in names}


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_update_is_what_plain_torch_makes_of_the_same_batches(form: dict[str, object]) -> None:
    module = _module()
    task, (x, y) = _task(module), _samples()
    first = {name: tensor.clone().float() for name, tensor in module.state_dict().items()}
    spec = msgspec.structs.replace(LearnerSpec(), **form)
    keys = {"lr": spec.rate, "weight_decay": spec.weight_decay}
    if spec.optimizer == "adamw":
        theirs = torch.optim.AdamW(module.parameters(), **keys)
    else:
        theirs = torch.optim.SGD(module.parameters(), momentum=spec.momentum, **keys)
    for start in range(0, 30, 10):
        rows = slice(start, start + 10)
        theirs.zero_grad()
        output = module(torch.from_numpy(x[rows]))
        nn.functional.cross_entropy(output, torch.from_numpy(y[rows])).backward()
        if spec.clip_norm:
            nn.utils.clip_grad_norm_(module.parameters(), spec.clip_norm)
        theirs.step()
    learner = _learner(task, "fedavg", **form)
    learner.absorb(x, y)
    learner.begin(task.first)
    assert learner.step(learner.default_iterations).iterations == 3
    update = learner.update()
    assert update.keys() == task.first.keys()
    assert update["1.num_batches_tracked"] == 3, "a counter's delta"
    for name, tensor in module.state_dict().items():
        assert update[name].dtype == np.float32
        expected = (tensor.float() - first[name]).numpy()
        np.testing.assert_allclose(update[name], expected, atol=1e-5)


def test_local_tensors_stay_and_are_kept() -> None:
    task = _task(_module(), local=["norms"])
    learner = _learner(task)
    learner.absorb(*_samples())
    learner.begin(task.first)
    learner.step(1)
    assert not any(name.startswith("1.") for name in learner.update())
    kept = learner.keep()
    assert {"1.weight", "1.bias", "1.running_mean"} <= kept.keys()
    assert not np.array_equal(kept["1.running_mean"], task.once["1.running_mean"])
    again = _learner(task)
    again.restore(kept)
    assert all(np.array_equal(again.keep()[name], tensor) for name, tensor in kept.items())
    again.restore({})
    assert all(np.array_equal(again.keep()[name], task.once[name]) for name in kept)


def test_fedprox_and_scaffold_are_of_what_is_learnt_and_travels() -> None:
    """At one step from the base both are FedAvg; the second step is pulled back."""
    task, (x, y) = _task(_module()), _samples()
    learnt = [name for name in task.first if not name.startswith("1.") or "running" not in name]
    learnt.remove("1.num_batches_tracked")
    updates = {}
    for strategy in ("fedavg", "fedprox", "scaffold"):
        learner = _learner(task, strategy, name="bgd")
        learner.absorb(x, y)
        ride = _controls(task.first, learnt) if strategy == "scaffold" else {}
        learner.begin({**task.first, **ride})
        learner.step(2)
        updates[strategy] = learner.update()
    assert updates["scaffold"].keys() - task.first.keys() == {f"control/{n}" for n in learnt}
    for name in learnt:
        step = updates["scaffold"][name]
        np.testing.assert_allclose(updates["scaffold"][f"control/{name}"], -step / 0.2, rtol=1e-4)
        np.testing.assert_allclose(step, updates["fedavg"][name], atol=1e-6)
    assert not np.array_equal(updates["fedprox"]["0.weight"], updates["fedavg"]["0.weight"])


@pytest.mark.parametrize("name", ["minibatch", "sgd", "bgd", "loop"])
def test_a_rest_of_one_sample_joins_another_batch_and_one_alone_is_too_few(name: str) -> None:
    torch.manual_seed(0)
    task = _task(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), [], 4, 3)
    x = np.random.default_rng(1).normal(size=(17, 4)).astype(np.float32)
    for count in (16, 17, 33, 1):
        if name == "loop":
            spec, model = LearnerSpec(batch=16, device="cpu"), create_model(task.model)
            held = create_held(model, spec, threads=1)
            learner: Learner = UserLearner(_loop, held, model, spec, np.random.default_rng(0))
        else:
            learner = _learner(task, name=name, batch=16)
        learner.absorb(np.resize(x, (count, 4)), np.arange(count) % 3)
        learner.begin(task.first)
        if count == 1:
            with pytest.raises(FailedTrainingError, match="no_data: batch norm needs two samples"):
                learner.step(1)
            continue
        assert learner.step(learner.default_iterations).samples % count == 0
        assert all(np.isfinite(tensor).all() for tensor in learner.update().values())
        assert learner.num_samples == count


def test_a_trainer_trains_a_graph_from_files(tmp_path: Path) -> None:
    """With its once-file, its counters outside of the norm's limit, and its state kept."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    task = _task(module, ["3.*"], 64, 10)
    learner = LearnerSpec(name="sgd", batch=2, device="cpu", rate=0.01)
    data = DataSpec(scale=0.0625)
    spec = TaskSpec(model=task.model, learner=learner, data=data)
    (tmp_path / "once").write_bytes(encode_tensors(dict(task.once)))
    trainer = Trainer(lambda _job, _wait: False)
    ask = Open(job=1, task=task_bytes(spec), stream="digits:start=400,rate=0.001", seed=1)
    assert isinstance(trainer.answer(msgspec.structs.replace(ask, once=str(tmp_path))), Failed)
    opened = trainer.answer(msgspec.structs.replace(ask, once=str(tmp_path / "once")))
    assert isinstance(opened, Opened), opened
    (tmp_path / "model").write_bytes(encode_tensors(dict(task.first)))
    train = Train(job=2, model=str(tmp_path / "model"), out=str(tmp_path / "update"), round=1)
    ask = msgspec.structs.replace(ask, once=str(tmp_path / "once"))
    trainer.answer(msgspec.structs.replace(ask, stream="digits:start=1,rate=0.001"))
    reply = trainer.answer(train)
    assert isinstance(reply, Failed)
    assert (reply.reason, reply.detail) == ("no_data", "batch norm needs two samples")
    assert reply.offset == 1
    trainer.answer(ask)
    reply = trainer.answer(msgspec.structs.replace(train, state=str(tmp_path / "state")))
    assert isinstance(reply, Trained), reply
    assert reply.stats.num_samples == 400
    assert reply.stats.course.loss_rms > 0
    assert b"3.weight" not in (tmp_path / "update").read_bytes()
    assert b"3.weight" in (tmp_path / "state").read_bytes()
    trainer.close()


def _loop(model: Any, batches: Any, ctx: Any) -> None:
    """Somebody's training code."""
    optimizer = torch.optim.SGD(model.parameters(), lr=ctx.rate)
    for batch in batches:
        assert model(*batch[0]).shape[0] == len(batch[1])
        loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_packages_loop_trains_a_graph_and_writes_to_no_frozen_tensor() -> None:
    task, (x, y) = dense_task(frozen=True), _samples()
    spec = LearnerSpec(name="bgd", batch=40, device="cpu")
    model = create_model(task.model)
    held = create_held(model, spec, once=dict(task.once), threads=1)
    theirs = UserLearner(_loop, held, model, spec, np.random.default_rng(0))
    x = np.tile(x, 8)
    updates = []
    for learner in (theirs, _learner(task, name="bgd", rate=spec.rate)):
        learner.absorb(x, y)
        learner.begin(task.first)
        learner.step(1)
        updates.append(learner.update())
    for name, delta in updates[0].items():
        np.testing.assert_allclose(delta, updates[1][name], atol=1e-6)
    assert isinstance(held, HeldInTorch)
    next(iter(held.view.buffers())).add_(1.0)
    with pytest.raises(FailedTrainingError, match="frozen"):
        theirs.update()
