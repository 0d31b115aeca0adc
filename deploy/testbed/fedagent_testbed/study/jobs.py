"""Runs of studies, here or in processes: these end with their parent, and import ours only."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
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
    context = _Context()
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        with _no_interrupts():
            # The first job starts the pool's thread, which must not be half started at the end.
            pool.submit(_idle)
        yield pool
    except BaseException as error:
        context.terminate()
        pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise WorkerLostError from error
        raise
    pool.shutdown()


class _Worker(SpawnProcess):
    """A process that Ctrl-C does not reach, not even while it starts."""

    def start(self) -> None:
        """Start it without the current folder in its path, where a `types.py` may lie."""
        before = os.environ.get(_SAFE_PATH)
        os.environ[_SAFE_PATH] = "1"
        try:
            with _no_interrupts():
                super().start()
        finally:
            if before is None:
                del os.environ[_SAFE_PATH]
            else:
                os.environ[_SAFE_PATH] = before


class _Context(SpawnContext):
    """Spawns workers, and remembers them. Not forked: threads would be copied half way."""

    def __init__(self) -> None:
        super().__init__()
        self._started: list[_Worker] = []

    def Process(self, *args: object, **kwargs: object) -> _Worker:  # type: ignore[override]  # noqa: N802 - a class there
        """Make a worker, as the pool asks for it."""
        worker = _Worker(*args, **kwargs)  # type: ignore[arg-type]  # those of a process
        self._started.append(worker)
        return worker

    def terminate(self) -> None:
        """End all workers now."""
        for worker in self._started:
            if worker.is_alive():
                worker.terminate()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Let SIGINT wait; processes that are started meanwhile never get one.

    The mask is what they inherit. It holds back this thread only: Python would still raise in
    the main thread what another one was sent, and leave a process half started.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    received: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if in_main:
        signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if in_main:
            signal.signal(signal.SIGINT, handler)
    if received:
        signal.raise_signal(signal.SIGINT)


def _begin() -> None:
    """Ignore Ctrl-C, which the parent handles, and end when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _idle() -> None:
    """Start the pool."""


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "this is a worker"
    parent.join()
    os._exit(1)
