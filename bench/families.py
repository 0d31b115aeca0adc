"""Families of models as people bring them, learnt live by three agents, killed and resumed.

For each: built from its module, then over a real broker one agent, the edge and the coordinator
are killed (SIGKILL) after the first round and started again. The loss is the task's own on what
the agents learnt from; `difference` is the largest between what a device's training makes of
every tensor and what plain PyTorch does on the same batches.

    python -m bench.families                     # every family
    python -m bench.families --family lora
"""

import argparse
import copy
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from fedagent_agent.learners.steps import create_steps
from fedagent_coordinator.books.reader import open_reader
from fedagent_task.graph_scoring import scored
from fedagent_task.models.graph import Graph
from fedagent_task.program.making import make_task
from fedagent_task.program.source import TaskSource
from fedagent_task.spec import LearnerSpec
from fedagent_task.task_file import TaskFile, write_task_file
from fedagent_testbed.local import LocalField, RoleProcess
from tests.fakes.torch_models import CLASSES, FAMILIES, family

from .rows import Row, Rows, show

AGENTS, SAMPLES, ROUNDS, STEPS, RATE = 3, 48, 4, 3, 0.02
LIMIT = 1e-5
SETS = (f"rounds.count={ROUNDS}", "rounds.deadline_s=60", "rounds.max_wait_s=90")


def samples(source: TaskSource, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and labels that fit an example, with something to learn in them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, SAMPLES)
    columns = []
    for one in source.example[:-1]:
        assert one is not None
        shape = (SAMPLES, int(np.prod(one.shape[1:])))
        if one.is_floating_point():
            columns.append(rng.normal(size=shape) + (y[:, None] - 0.5))
        else:
            columns.append(np.minimum(rng.integers(0, 4, shape) + y[:, None], CLASSES - 1))
    x = np.hstack(columns).astype(np.float32)
    target = source.example[-1]
    real = target is not None and target.is_floating_point()
    return x, x[:, 0].astype(np.float32) if real else y


def difference(source: TaskSource, task: TaskFile, x: np.ndarray, y: np.ndarray) -> float:
    """Return the largest difference to plain PyTorch after some steps on the same batches."""
    graph = Graph(task.model)
    steps = create_steps(graph, LearnerSpec(rate=RATE), once=task.once, seed=0)
    steps.begin(task.first, rate=RATE)
    state = torch.get_rng_state()
    for start in range(STEPS):
        steps.step(x[start * 16 : start * 16 + 16], y[start * 16 : start * 16 + 16])
    plain = copy.deepcopy(source.model).train()
    optimiser = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=RATE)
    torch.set_rng_state(state)
    for start in range(STEPS):
        inputs, target = batch(source, x[start * 16 :][:16], y[start * 16 :][:16])
        optimiser.zero_grad()
        given = inputs if target is None else [target]
        source.loss(plain(*inputs), *given).backward()
        optimiser.step()
    expected = {name: t.numpy() for name, t in plain.state_dict().items()}
    made = {name: task.first[name] + t for name, t in steps.moved(task.first).items()}
    return max(float(np.abs(t - expected[name]).max()) for name, t in made.items())


def batch(source: TaskSource, x: np.ndarray, y: np.ndarray) -> tuple[list[Any], Any]:
    """Return rows as the module takes them."""
    inputs, at = [], 0
    for one in source.example[:-1]:
        assert one is not None
        width = int(np.prod(one.shape[1:]))
        part = torch.from_numpy(x[:, at : at + width].copy())
        inputs.append(part.reshape(len(x), *one.shape[1:]).to(one.dtype))
        at += width
    target = source.example[-1]
    if target is None:
        return inputs, None
    return inputs, torch.from_numpy(y).reshape(len(y), *target.shape[1:]).to(target.dtype)


def live(name: str, folder: Path) -> Row:
    """Return what became of one family over a real broker."""
    source = family(name)
    began = time.monotonic()
    task = make_task(source).task
    built_s = time.monotonic() - began
    write_task_file(path := folder / "mine.fedtask", task)
    parts = [samples(source, seed) for seed in range(AGENTS)]
    for index, (x, y) in enumerate(parts):
        np.savez(folder / f"part-{index}.npz", x=x, y=y)
    with LocalField(folder, f"families-{secrets.token_hex(4)}") as field:
        end, process = _played(field, path, folder)
    x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    graph = scored(Graph(task.model), task.once)
    assert graph is not None
    losses = [graph.loss(load_file(_kept(process, n)), x, y) for n in (0, ROUNDS)]
    off = difference(source, task, *parts[0])
    travels = sum(t.nbytes for t in task.first.values())
    met = end["rounds_done"] == ROUNDS and bool(end["ledger_balanced"]) and off <= LIMIT
    return {
        "bench": "families",
        "family": name,
        "program_bytes": len(task.model.program),
        "onnx_bytes": len(task.onnx),
        "travels_bytes": travels,
        "once_bytes": task.model.once_bytes,
        "build_s": round(built_s, 2),
        "rounds": end["rounds_done"],
        "updates_used": end["updates_used"],
        "loss_before": round(losses[0], 4),
        "loss_after": round(losses[1], 4),
        "ledger_balanced": end["ledger_balanced"],
        "difference": off,
        "met": met and losses[1] < losses[0],
    }


def _played(field: LocalField, task: Path, folder: Path) -> tuple[dict[str, object], RoleProcess]:
    config: dict[str, Any] = {"broker": "embedded", "wait_edges": 1, "wait_agents": AGENTS}
    learner = (f"learner.rate={RATE}", "learner.batch=16", "learner.passes=8")
    config["sets"] = [*SETS, *learner]

    def agent(index: int) -> RoleProcess:
        stream = f"replay:{folder}/part-{index}.npz,start={SAMPLES},rate=5"
        return field.agent(f"agent-{index}", stream)

    first = field.coordinator(task, **config)
    edge = field.edge("edge-0", broker="embedded")
    agents = [agent(index) for index in range(AGENTS)]
    first.wait("round", round=1, timeout_s=180)
    agents[0].kill()
    edge.kill()
    first.kill()
    last = field.coordinator(task, **config)
    field.edge("edge-0", broker="embedded")
    agent(0)
    assert last.wait("ready")["resumed"] is True
    return last.wait("end", timeout_s=240), last


def _kept(process: RoleProcess, round_: int) -> Path:
    folder = Path(str(process.config["data_dir"]))
    with open_reader(folder) as read:
        rows = read.models.rows(read.runs()[0].run_id)
    return folder / "models" / next(row.digest for row in rows if row.round == round_)


def rows(names: tuple[str, ...] = FAMILIES) -> Rows:
    """Yield a row for each family."""
    torch.set_num_threads(1)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            yield live(name, Path(folder))


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.families", description=__doc__)
    parser.add_argument("--family", choices=FAMILIES)
    chosen = parser.parse_args().family
    return 0 if show(rows((chosen,) if chosen else FAMILIES)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
