"""Runs of studies, here or in processes: these end with their parent, and import ours only."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from multiprocessing import active_children, get_context, parent_process
from typing import Protocol

from fedagent_testbed.recipe import TestbedRecipe

from .history import History

Job = Callable[[TestbedRecipe, str, int], History]
"""Runs a policy on a seed of a recipe."""
Task = tuple[TestbedRecipe, str, int]
"""A recipe, a policy and a seed."""
Done = Callable[[str, int, int], None]
"""Takes policy, seed and the number of runs in all, when a run is over."""

_SAFE_PATH = "PYTHONSAFEPATH"
_POSIX = hasattr(signal, "pthread_sigmask")


class Pool(Protocol):
    """What runs the jobs: `Executor.submit` is enough."""

    def submit(self, job: Job, /, *args: object) -> "Future[History]":
        """Start a job."""


class WorkerLostError(Exception):
    """Raised when a process that ran a study was killed, e.g. for want of memory."""

    hint = "if memory ran out, run fewer at a time: --jobs 1"

    def __init__(self) -> None:
        super().__init__("a process was killed before its run ended")

    def __str__(self) -> str:
        return f"{self.args[0]}; {self.hint}"


def run_jobs(
    job: Job,
    recipe: TestbedRecipe,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    jobs: int,
    pool: Pool | None,
    done: Done,
) -> dict[str, tuple[History, ...]]:
    """Run every name on every seed; a run depends on nothing but its arguments.

    Raises:
        WorkerLostError: A process was killed.
    """
    tasks = [(recipe, name, seed) for seed in seeds for name in names]
    runs = run_tasks(job, tasks, jobs=jobs, pool=pool, done=done)
    found = {(task[1], task[2]): run for task, run in zip(tasks, runs, strict=True)}
    return {name: tuple(found[name, seed] for seed in seeds) for name in names}


def run_tasks(
    job: Job, tasks: Sequence[Task], *, jobs: int, pool: Pool | None, done: Done
) -> list[History]:
    """Run tasks of several recipes, and return their histories in the same order.

    Raises:
        WorkerLostError: A process was killed.
    """
    results: dict[int, History] = {}
    if pool is None and jobs <= 1:
        for index, task in enumerate(tasks):
            results[index] = job(*task)
            done(task[1], task[2], len(tasks))
    else:
        with workers(jobs) if pool is None else nullcontext(pool) as several:
            with _starting():
                futures = {several.submit(job, *task): index for index, task in enumerate(tasks)}
            try:
                for future in as_completed(futures):
                    index = futures[future]
                    results[index] = future.result()
                    done(tasks[index][1], tasks[index][2], len(tasks))
            finally:
                # After a failure the others are of no use. A pool of our own ends with its block:
                # it cannot bear futures that others cancelled while its processes are ended.
                for future in futures if pool is not None else ():
                    future.cancel()
    return [results[index] for index in range(len(tasks))]


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of processes; whatever ends the block with an error ends them at once.

    Raises:
        WorkerLostError: A process was killed.
    """
    # Spawned, not forked: threads would be copied half way.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_follow_parent)
    try:
        yield pool
    except BaseException as error:
        for process in active_children():
            process.terminate()
        pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise WorkerLostError from error
        raise
    pool.shutdown()


@contextmanager
def _starting() -> Iterator[None]:
    """Hold Ctrl-C back, which processes that are started meanwhile inherit: they never get one.

    They do not import from the current folder either, where a `types.py` may lie.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if _POSIX else set()
    try:
        yield
    finally:
        if _POSIX:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.environ.pop(_SAFE_PATH)
        if before is not None:
            os.environ[_SAFE_PATH] = before


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "this is a worker"
    parent.join()
    os._exit(1)
