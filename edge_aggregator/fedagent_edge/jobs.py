"""Run the runtime's jobs one after the other: at once when small, else in one thread."""

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .outward import Job
from .runtime import SMALL_BYTES


class JobQueue:
    """Jobs in order; never two at a time.

    Args:
        loop: Where jobs are put and their results told.
        done: Takes a job and its result.
        fail: Takes what a job was not expected to raise.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[Job, object], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._done = done
        self._fail = fail
        self._queue: deque[Job] = deque()
        self._busy = False
        self._closed = False
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="edge-jobs")

    def put(self, job: Job) -> None:
        """Do a job after those that were put before; a round has few at a time."""
        self._queue.append(job)
        if not self._busy:
            self._next()

    def close(self) -> None:
        """Wait for the job at work, forget the others."""
        self._closed = True
        self._queue.clear()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _next(self) -> None:
        while self._queue and not self._busy and not self._closed:
            job = self._queue.popleft()
            self._busy = True
            if job.size > SMALL_BYTES:
                future = self._loop.run_in_executor(self._worker, job.work)
                future.add_done_callback(functools.partial(self._ended, job))
                return
            try:
                result = job.work()
            except Exception as error:  # noqa: BLE001 - handed on: nothing may go on after it
                self._fail(error)
                return
            self._busy = False
            self._done(job, result)

    def _ended(self, job: Job, future: "asyncio.Future[object]") -> None:
        if future.cancelled() or self._closed:
            return
        error = future.exception()
        if isinstance(error, Exception):
            self._fail(error)
            return
        self._busy = False
        self._done(job, future.result())
        self._next()
