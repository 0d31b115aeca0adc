"""Models of one's own over a real broker: learnt live, killed and resumed."""

import copy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional

from fedagent_coordinator.books.reader import open_reader
from fedagent_task.program.making import make_task
from fedagent_task.program.source import TaskSource
from fedagent_task.readers import load
from fedagent_task.task_file import TaskFile, write_task_file
from fedagent_testbed.local import LocalField, RoleProcess
from tests.fakes.torch_models import Lora

from .support import check_books, new_field

SETS = ("rounds.deadline_s=20", "rounds.max_wait_s=30", "evaluation.dataset=digits-test")


class Cnn(nn.Module):  # type: ignore[misc] # torch is not there to mypy
    """Two convolutions with batch norm, for the bundled digits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.out = nn.Conv2d(8, 16, 3, padding=1), nn.Linear(256, 10)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        seen = torch.relu(self.norm(self.first(x)))
        return self.out(functional.max_pool2d(torch.relu(self.second(seen)), 2).flatten(1))


def source_of(model: nn.Module, **learner: object) -> TaskSource:
    shape = (4, 64) if isinstance(model, nn.Sequential) else (4, 1, 8, 8)
    example = (torch.randn(shape), torch.randint(0, 10, (4,)))
    return TaskSource(model, functional.cross_entropy, example, learner=learner)


def task_in(folder: Path, source: TaskSource) -> tuple[Path, TaskFile]:
    task = make_task(source).task
    write_task_file(path := folder / "mine.fedtask", task)
    return path, task


def coordinator(field: LocalField, task: Path, *sets: str, agents: int) -> RoleProcess:
    return field.coordinator(
        task, broker="embedded", wait_edges=1, wait_agents=agents, sets=[*SETS, *sets]
    )


def agent(field: LocalField, index: int, agents: int = 3) -> RoleProcess:
    stream = f"digits:part={index + 1}/{agents},start=300,rate=20"
    return field.agent(f"agent-{index}", stream)


def kept_model(process: RoleProcess, round_: int) -> Path:
    folder = Path(str(process.config["data_dir"]))
    with open_reader(folder) as read:
        rows = read.models.rows(read.runs()[0].run_id)
    return folder / "models" / next(row.digest for row in rows if row.round == round_)


@pytest.mark.slow
def test_a_model_of_ones_own_is_learnt_although_everybody_dies(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path, task = task_in(tmp_path, source_of(Cnn(), rate=0.05, batch=20, passes=3))
    rounds = "rounds.count=10"  # of the first four some have one update, or none
    with new_field(tmp_path) as field:
        first = coordinator(field, path, rounds, agents=3)
        edge = field.edge("edge-0", broker="embedded")
        agents = [agent(field, i) for i in range(3)]
        first.wait("round", round=1, timeout_s=120)
        agents[1].kill()
        agent(field, 1)
        first.wait("round", round=2, timeout_s=120)
        edge.kill()
        field.edge("edge-0", broker="embedded")
        first.wait("round", round=3, timeout_s=120)
        first.kill()
        last = coordinator(field, path, rounds, agents=3)
        assert last.wait("ready")["resumed"] is True
        end = last.wait("end", timeout_s=120)
    assert (end["rounds_done"], end["ledger_balanced"]) == (10, True)
    assert float(str(end["accuracy"])) > 0.9
    check_books(last)
    # What a batch norm counts and averages has come back with the updates.
    made = load_file(kept_model(last, 10))
    assert float(made["norm.num_batches_tracked"]) > 0
    assert np.abs(made["norm.running_mean"] - task.first["norm.running_mean"]).max() > 0


def test_an_update_is_what_plain_pytorch_makes_of_the_same_samples(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Cnn()
    path, _ = task_in(tmp_path, source_of(model, name="bgd", rate=0.1, passes=3))
    samples = load("digits-train").rows(slice(0, 200))
    np.savez(tmp_path / "own.npz", x=samples.x, y=samples.y)
    with new_field(tmp_path) as field:
        process = coordinator(field, path, "rounds.count=1", agents=1)
        field.edge("edge-0", broker="embedded")
        field.agent("agent-0", f"replay:{tmp_path}/own.npz,start=200,rate=0.001")
        process.wait("end", timeout_s=120)
    plain = copy.deepcopy(model).train()
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
    x = torch.from_numpy(samples.x.astype(np.float32)).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(samples.y.astype(np.int64))
    for _ in range(3):
        optimiser.zero_grad()
        functional.cross_entropy(plain(x), y).backward()
        optimiser.step()
    made = load_file(kept_model(process, 1))
    state = plain.state_dict()
    assert made.keys() == state.keys()
    for name, tensor in state.items():
        np.testing.assert_allclose(made[name], tensor.numpy(), atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_of_adapters_only_they_travel_and_the_base_once(tmp_path: Path) -> None:
    torch.manual_seed(2)
    body = nn.Sequential(Lora(nn.Linear(64, 2000)), nn.ReLU(), Lora(nn.Linear(2000, 10)))
    path, task = task_in(tmp_path, source_of(body, rate=0.05, batch=20, passes=2))
    with new_field(tmp_path) as field:
        first = coordinator(field, path, "rounds.count=4", "data.scale=0.0625", agents=2)
        edge = field.edge("edge-0", broker="embedded")
        agents = [agent(field, i, 2) for i in range(2)]
        first.wait("round", round=1, timeout_s=120)
        agents[0].kill()
        edge.kill()
        field.edge("edge-0", broker="embedded")
        agent(field, 0, 2)
        end = first.wait("end", timeout_s=120)
        once = task.model.once
        cached = [f"agent-{at}/once/model.{once}" for at in (0, 1)]
        for where in (*cached, f"edge-0/models/{once}"):
            assert (tmp_path / where).read_bytes() == task.once_bytes
    assert end["rounds_done"] == 4
    before, after = load_file(kept_model(first, 0)), load_file(kept_model(first, 4))
    assert {name.rpartition(".")[2] for name in after} == {"a", "b"}
    assert np.abs(after["2.b"] - before["2.b"]).max() > 0
    size = kept_model(first, 4).stat().st_size
    assert task.model.once_bytes > 9 * size, "the base is not in what travels each round"
