"""Where torch computes, in which precision and in how many threads."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from fedagent_task.errors import TaskFormatError
from fedagent_task.recipe.spec import LearnerSpec

_HINT = {
    "cuda": "install a torch built for it and its driver, or write auto",
    "mps": "it exists on Apple computers only; write auto",
}


def device_of(spec: LearnerSpec) -> "torch.device":
    """Return the device that a recipe asks for; ``auto`` is cuda, else mps, else the processor.

    Raises:
        TaskFormatError: It is not here, or cannot compute in the precision asked for.
    """
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    name: str = spec.device
    if name == "auto":
        name = next((one for one, there in here.items() if there), "cpu")
    elif not here.get(name, True):
        raise TaskFormatError("learner.device", f"{name} is not on this device: {_HINT[name]}")
    if spec.precision == "float16" and name != "cuda":
        detail = f"float16 needs cuda, and this device computes on {name}; write bfloat16"
        raise TaskFormatError("learner.precision", detail)
    return torch.device(name)


def autocast_of(spec: LearnerSpec, device: "torch.device") -> "AbstractContextManager[object]":
    """Return what forward passes run in."""
    if spec.precision == "float32":
        return nullcontext()
    half = torch.bfloat16 if spec.precision == "bfloat16" else torch.float16
    cast: AbstractContextManager[object] = torch.autocast(device.type, dtype=half)
    return cast


def prepare(spec: LearnerSpec, device: "torch.device", threads: int) -> None:
    """Set threads, and deterministic kernels: the same samples, threads and chip, the same sums.

    `threads`: most that the device's owner allows, 0 for all cores but one.
    """
    torch.set_num_threads(thread_count(spec.threads, threads))
    # cuBLAS reads this once; on a graphics chip a kernel without a deterministic form only warns.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # `use_deterministic_algorithms` does the same and imports a compiler of 70 MB for it.
    torch.set_deterministic_debug_mode("error" if device.type == "cpu" else "warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads any


def thread_count(wanted: int, most: int) -> int:
    """Return how many threads to take: as wanted, else all cores but one, as far as allowed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    allowed = [cores or 1]
    if (named := os.environ.get("OMP_NUM_THREADS", "")).isdigit() and int(named) > 0:
        allowed.append(int(named))
    if most > 0:
        allowed.append(most)
    return min(*allowed, wanted or max(1, (cores or 1) - 1))
