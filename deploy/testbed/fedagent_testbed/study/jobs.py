"""Runs of studies, here or in processes, which end with their parent."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import Protocol

from fedagent_protocol.errors import FedagentError
from fedagent_testbed.recipe import TestbedRecipe

from .history import History

Job = Callable[[TestbedRecipe, str, int], History]
"""Runs a policy on a seed of a recipe."""
Done = Callable[[str, int, int], None]
"""Takes policy, seed and the number of runs in all, when a run is over."""


class Pool(Protocol):
    """What runs the jobs: `Executor.submit` is enough."""

    def submit(self, job: Job, /, *args: object) -> "Future[History]":
        """Start a job."""


Runner = Pool | ProcessPoolExecutor


class WorkerLostError(FedagentError):
    """Raised when a process that ran a study was killed, e.g. for want of memory."""

    template = "a process was killed before its run ended"
    hint = "if memory ran out, run fewer at a time: --jobs 1"


def run_jobs(
    job: Job,
    recipe: TestbedRecipe,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    pool: Runner | None,
    done: Done,
) -> dict[str, tuple[History, ...]]:
    """Run every name on every seed, here without a pool; a run depends on its arguments only."""
    found: dict[tuple[str, int], History] = {}
    tasks = [(name, seed) for seed in seeds for name in names]
    if pool is None:
        for name, seed in tasks:
            found[name, seed] = job(recipe, name, seed)
            done(name, seed, len(tasks))
    else:
        futures = {pool.submit(job, recipe, *task): task for task in tasks}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            done(*futures[future], len(tasks))
    return {name: tuple(found[name, seed] for seed in seeds) for name in names}


@contextmanager
def pool_of(jobs: int, pool: Pool | None = None) -> Iterator[Runner | None]:
    """Give the pool, or one of so many processes; whatever ends the block ends them.

    Raises:
        WorkerLostError: A process was killed.
    """
    if pool is not None or jobs <= 1:
        yield pool
        return
    # Spawned, not forked: threads would be copied half way.
    made = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_follow_parent)
    try:
        yield made
    except BaseException as error:
        for process in active_children():
            process.terminate()
        made.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise WorkerLostError from error
        raise
    made.shutdown()


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "this is a worker"
    parent.join()
    os._exit(1)
