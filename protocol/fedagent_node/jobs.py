"""Run a role's jobs: at once when small, else in a thread; one after the other, or side by side."""

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .driver import Job
from .effects import Input


class JobQueue:
    """Jobs in the order of asking, `workers` at a time; small ones wait for nothing but order.

    `done` takes the result of a job that was not done at once, `fail` what no job should raise.
    With one worker, jobs do not overtake each other.
    """

    def __init__(
        self,
        done: Callable[[Input], None],
        fail: Callable[[Exception], None],
        *,
        workers: int = 1,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = done
        self._fail = fail
        self._ordered = workers == 1
        self._workers = workers
        self._waiting: deque[Job] = deque()
        self._at_work: dict[int, tuple[str, float]] = {}  # since when
        self._begun = 0
        self._closed = self._beginning = False
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="jobs")

    def submit(self, job: Job) -> Input | None:
        """Do a job; return its result if that is here."""
        if self._closed:
            return None
        if job.small and not (self._ordered and (self._at_work or self._waiting)):
            return self._run(job)
        self._waiting.append(job)
        self._next()
        return None

    def longest(self, now: float) -> tuple[str, float]:
        """Return the name of the job that is at work for longest, and for how many seconds."""
        name, since = min(self._at_work.values(), key=lambda one: one[1], default=("", now))
        return name, now - since

    def close(self) -> None:
        """Wait for the jobs at work, forget the others. Idempotent."""
        self._closed = True
        self._waiting.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job) -> Input | None:
        try:
            return job.work()
        except Exception as error:  # noqa: BLE001 - handed on: nothing may go on after it
            self._closed = True
            self._fail(error)
            return None

    def _next(self) -> None:
        """Begin what can begin; not from within the effects of a result, which come first."""
        if self._beginning:
            return
        self._beginning = True
        try:
            while self._waiting and len(self._at_work) < self._workers and not self._closed:
                job = self._waiting.popleft()
                if not job.small:
                    self._begun += 1
                    self._at_work[self._begun] = job.name, time.monotonic()
                    future = self._loop.run_in_executor(self._pool, job.work)
                    future.add_done_callback(functools.partial(self._ended, self._begun))
                elif (result := self._run(job)) is not None:
                    self._done(result)
        finally:
            self._beginning = False

    def _ended(self, number: int, future: "asyncio.Future[Input]") -> None:
        if future.cancelled() or self._closed:
            return
        error = future.exception()
        if isinstance(error, Exception):
            self._closed = True
            self._fail(error)
            return
        self._done(future.result())
        # Busy until now: nothing that waits begins within the effects of this result.
        del self._at_work[number]
        self._next()
