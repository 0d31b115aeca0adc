"""Run a role's jobs: at once when small, else in a thread; one after the other, or side by side."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .driver import Job
from .effects import Input


class JobQueue:
    """Jobs in the order of asking, `workers` at a time; small ones wait for nothing but order.

    `done` takes the result of a job that was not done at once, `fail` what no job should raise.
    With one worker, jobs do not overtake each other. None begins within the effects of a result.
    """

    def __init__(
        self,
        done: Callable[[Input], None],
        fail: Callable[[Exception], None],
        *,
        workers: int = 1,
    ) -> None:
        self._done = done
        self._fail = fail
        self._ordered = workers == 1
        self._waiting: asyncio.Queue[Job] = asyncio.Queue()
        self._at_work: dict[int, tuple[str, float]] = {}  # since when
        self._closed = False
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="jobs")
        self._workers = [asyncio.create_task(self._work(n), name="jobs") for n in range(workers)]

    def submit(self, job: Job) -> Input | None:
        """Do a job; return its result if that is here."""
        if self._closed:
            return None
        if job.small and not (self._ordered and (self._at_work or not self._waiting.empty())):
            try:
                return job.work()
            except Exception as error:  # noqa: BLE001 - handed on: nothing may go on after it
                self._failed(error)
                return None
        self._waiting.put_nowait(job)
        return None

    def longest(self, now: float) -> tuple[str, float]:
        """Return the name of the job that is at work for longest, and for how many seconds."""
        name, since = min(self._at_work.values(), key=lambda one: one[1], default=("", now))
        return name, now - since

    def close(self) -> None:
        """Wait for the jobs at work, forget the others. Idempotent."""
        self._closed = True
        for worker in self._workers:
            worker.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _work(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed:
            job = await self._waiting.get()
            self._at_work[number] = job.name, time.monotonic()
            try:
                if job.small:
                    result = job.work()
                else:
                    result = await loop.run_in_executor(self._pool, job.work)
                self._done(result)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(error)
                return
            del self._at_work[number]

    def _failed(self, error: Exception) -> None:
        self._closed = True
        self._fail(error)
