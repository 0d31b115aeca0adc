"""ResNet-18 as a program against the same loop in plain PyTorch: throughput and memory.

Batch 16 of CIFAR's size, SGD with momentum, one thread; one process each, three of each in turn, so
that what else runs on the machine slows both. Seconds are of the processor.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

BATCH, SIZE, STEPS, WARM, TURNS = 16, 32, 12, 2, 3
LEAST_THROUGHPUT, MOST_MEMORY = 0.95, 1.3


def rows() -> Iterator[dict[str, object]]:
    if find_spec("torch") is None:
        yield {"bench": "graph", "skipped": "torch is not installed"}
        return
    for norm in ("batch", "group"):
        yield _row(norm)


def _row(norm: str) -> dict[str, object]:
    found: dict[str, list[dict[str, float]]] = {"plain": [], "program": []}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "resnet.fedtask")
        _process("build", path, norm)
        for _ in range(TURNS):
            for kind, one in found.items():
                one.append(json.loads(_process(kind, path, norm)))
    middle = {
        kind: {key: statistics.median(one[key] for one in listed) for key in listed[0]}
        for kind, listed in found.items()
    }
    plain, program = middle["plain"], middle["program"]
    throughput = plain["step_s"] / program["step_s"]
    memory = program["peak_mb"] / plain["peak_mb"]
    above = (program["peak_mb"] - program["import_mb"]) / (plain["peak_mb"] - plain["import_mb"])
    return {
        "bench": f"graph-resnet18-{norm}",
        "batch": BATCH,
        "step_ms": round(1000 * program["step_s"], 1),
        "plain_step_ms": round(1000 * plain["step_s"], 1),
        "throughput": round(throughput, 3),
        "throughput_bar": LEAST_THROUGHPUT,
        "peak_mb": round(program["peak_mb"], 1),
        "plain_peak_mb": round(plain["peak_mb"], 1),
        "memory": round(memory, 3),
        "memory_above_torch": round(above, 3),
        "memory_bar": MOST_MEMORY,
        "loss_difference": abs(program["loss"] - plain["loss"]),
        "met": throughput >= LEAST_THROUGHPUT and max(memory, above) <= MOST_MEMORY,
    }


def _process(kind: str, path: str, norm: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "bench.graph", kind, path, norm],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return done.stdout


def _one(kind: str, path: str, norm: str) -> None:
    import torch

    torch.set_num_threads(1)
    imported = _peak_mb()
    torch.manual_seed(0)
    x = torch.randn(BATCH, 3, SIZE, SIZE)
    y = torch.randint(0, 5, (BATCH,))
    if kind == "program":
        from fedagent_task.program.torch_program import TorchProgram
        from fedagent_task.task_file import read_task_file

        task = read_task_file(Path(path))
        program = TorchProgram(task.program)
        program.load(task.first)
        del task
        parameters = list(program.parameters.values())
        batch = program.inputs_of(x.reshape(BATCH, -1).numpy(), y.numpy())

        def loss() -> torch.Tensor:
            return program.loss(batch)
    else:
        from tests.fakes.torch_models import ResNet18

        torch.manual_seed(0)
        model = ResNet18(group=norm == "group", width=64)
        if kind == "build":
            from fedagent_task.program.export import make_task
            from fedagent_task.program.source import TaskSource
            from fedagent_task.task_file import write_task_file

            made = make_task(TaskSource(model, torch.nn.functional.cross_entropy, (x, y)))
            write_task_file(Path(path), made.task)
            return
        model.train()
        parameters = list(model.parameters())

        def loss() -> torch.Tensor:
            return torch.nn.functional.cross_entropy(model(x), y)

    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    seconds = []
    value = 0.0
    for _ in range(WARM + STEPS):
        before = time.process_time()
        optimizer.zero_grad()
        got = loss()
        got.backward()
        optimizer.step()
        value = float(got.detach())
        seconds.append(time.process_time() - before)
    told = {
        "step_s": statistics.median(seconds[WARM:]),
        "import_mb": imported,
        "peak_mb": _peak_mb(),
        "loss": value,
    }
    sys.stdout.write(json.dumps(told))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    _one(*sys.argv[1:])
