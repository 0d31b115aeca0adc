"""The agent's side of the trainer process: started lazily, killed when it must be.

Imports no numpy: the agent itself stays small.
"""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine
from contextlib import suppress

import psutil
from msgspec.structs import replace

from fedagent_node.data_dir import passing

from .frames import (
    PREFIX_BYTES,
    Cancel,
    Failed,
    FrameError,
    Job,
    Mask,
    Open,
    Opened,
    Reply,
    Train,
    Trained,
    decode_reply,
    encode_frame,
    frame_length,
)

WATCHDOG_S = 3600.0
"""Longest that a job may take before the process is killed."""
LAST_LINES_S = 1.0
"""How long the lines of a process that has ended may still come."""
END_S = 10.0
"""How long a killed process may take to end."""
OPEN_S = 120.0
"""Longest that starting the process and opening a stream may take."""

_log = logging.getLogger(__name__)

_COMMAND = ("-P", "-m", "fedagent_agent.trainer.process")
# Numpy's small products gain nothing from more threads, and an idle pool costs memory; torch
# sets its own number (`learners.torch_steps`), below an owner's OMP_NUM_THREADS.
_THREADS = ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_MAX_LINE = 500


Spawn = Callable[[Coroutine[object, object, None], str], asyncio.Task[None]]


def _create_task(work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work, name=name)


_ENDED = (asyncio.IncompleteReadError, ConnectionError, FrameError, TimeoutError)
"""What says that no answer is to come: the process died, or must be killed."""


def _failed(job: Job, reason: str, detail: str = "") -> Failed:
    return Failed(job=job.job, reason=reason, detail=detail)


class TrainerClient:
    """Keep one trainer process, and have it do one job at a time.

    Every job has exactly one answer, whatever becomes of the process. One that was killed or died
    is started anew by the next job, and goes on where its stream was.

    A cancelled training may go on for `grace_s` before the kill; `on_end` is called when a process
    has ended, and with it what the learner remembered.
    """

    def __init__(
        self,
        *,
        grace_s: float = 2.0,
        nice: int = 0,
        memory_bytes: int = 0,
        on_end: Callable[[], None] = lambda: None,
        spawn: Spawn = _create_task,
    ) -> None:
        self._arguments = ("--nice", str(nice), "--memory-bytes", str(memory_bytes))
        self._on_end = on_end
        self._spawn = spawn
        self._grace_s = grace_s
        self._turn = asyncio.Lock()
        self._jobs: dict[int, bool] = {}
        """Jobs that wait or run: whether they were cancelled."""
        self._running: int | None = None
        self._limit: asyncio.Timeout | None = None
        self._process: Process | None = None
        self._stderr: asyncio.Task[None] | None = None
        self._is_killed = False
        self._wanted: Open | None = None
        self._is_open = False
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Process id, while there is a process."""
        return self._process.pid if self._process else None

    # ------------------------------------------------------------------ queue

    async def submit(self, job: Job) -> Reply:
        """Have a job done after those that wait; a failure is an answer too.

        Whoever stops waiting for the answer kills the process that works on it.
        """
        self._jobs[job.job] = False
        try:
            async with self._turn:
                self._running = job.job
                try:
                    if self._is_cancelled:
                        return _failed(job, "cancelled")
                    return await self._answer(job)
                finally:
                    self._running = None
        finally:
            del self._jobs[job.job]

    def cancel(self, job: int) -> None:
        """Give up a training, whether it runs or waits: its answer is `Failed(cancelled)`.

        The process is killed if it does not obey within the grace.
        """
        if job not in self._jobs:
            return
        self._jobs[job] = True
        if self._running != job:
            return
        stdin = self._process.stdin if self._process else None
        if stdin is not None and not stdin.is_closing():
            stdin.write(encode_frame(Cancel(job=job)))
        if self._limit is not None and not self._limit.expired():
            latest = asyncio.get_running_loop().time() + self._grace_s
            self._limit.reschedule(min(latest, self._limit.when() or latest))

    async def close(self) -> None:
        """End the process: asked first, then killed. Idempotent."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None and not process.stdin.is_closing():
            process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), self._grace_s)
        await self._bury()

    async def _answer(self, job: Job) -> Reply:
        """Do a job; whatever goes wrong is an answer, and the queue goes on."""
        try:
            if isinstance(job, Open):
                self._wanted, self._is_open = job, False
            elif not (self._is_open and self._is_usable):
                if self._wanted is None:
                    return _failed(job, "stream", "stream: no stream was opened")
                reply = await self._answer(self._wanted)
                if isinstance(reply, Failed):
                    return replace(reply, job=job.job, offset=None)
            if self._is_cancelled:
                return _failed(job, "cancelled")
            reply = await self._ask(job)
        except _ENDED as error:
            reason = "died"
            if isinstance(error, TimeoutError):
                reason = "cancelled" if self._is_cancelled else "timeout"
            await self._bury()
            if isinstance(job, Train | Mask):
                passing(job.out).unlink(missing_ok=True)
            return _failed(job, reason)
        except Exception as error:  # noqa: BLE001 - the answer carries it on
            _log.exception("the trainer could not be used")
            return _failed(job, "error", type(error).__name__)
        if isinstance(reply, Trained | Failed) and reply.offset is not None and self._wanted:
            self._wanted = replace(self._wanted, offset=reply.offset, mark=reply.mark)
        if isinstance(reply, Failed) and reply.reason == "memory":
            # A heap in pieces is of no use: only the end of the process gives it back.
            await self._bury()
        if isinstance(job, Open):
            self._is_open = isinstance(reply, Opened)
        return reply

    # ---------------------------------------------------------------- process

    async def _ask(self, job: Job) -> Reply:
        """Wait for the answer itself, and not for an end of the pipes, which others may hold."""
        seconds: float | None = OPEN_S if isinstance(job, Open) else WATCHDOG_S
        if isinstance(job, Train):
            seconds = None  # it ends when its order is given up, which may be moved on meanwhile
        try:
            async with asyncio.timeout(seconds) as self._limit:
                return await _exchange(await self._ensure(), job)
        except asyncio.CancelledError:
            self._kill()
            raise
        finally:
            self._limit = None

    @property
    def _is_cancelled(self) -> bool:
        return self._running is not None and self._jobs[self._running]

    @property
    def _is_usable(self) -> bool:
        process = self._process
        # Its end is seen on stderr before the system says its exit code.
        ended = self._stderr is not None and self._stderr.done()
        alive = process is not None and process.returncode is None
        return alive and not (ended or self._is_killed)

    async def _ensure(self) -> Process:
        if self._process is not None:
            if self._is_usable:
                return self._process
            await self._bury()
        self._is_open = False
        self._is_killed = False
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_COMMAND,
            *self._arguments,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            # Of its own: what a learner has started in it ends with it.
            process_group=0,
            env={**dict.fromkeys(_THREADS, "1"), **os.environ},
        )
        self.starts += 1
        self._stderr = self._spawn(self._watch(self._process), "trainer-stderr")
        return self._process

    async def _watch(self, process: Process) -> None:
        try:
            await _log_lines(process)
        finally:
            self._on_end()

    def _kill(self) -> None:
        """Kill the process if it lives, and what a learner has started in its group."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            self._is_killed = True
        elif psutil.pid_exists(process.pid):
            return  # another's by now
        # macOS refuses where only zombies are left.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    async def _bury(self) -> None:
        """Kill the process; wait for its last lines, but not for who else may hold its pipes."""
        process = self._process
        if process is None:
            return
        self._kill()
        lines = [self._stderr] if self._stderr else []
        with suppress(TimeoutError):
            ends = asyncio.gather(process.wait(), *lines, return_exceptions=True)
            await asyncio.wait_for(ends, LAST_LINES_S)
        assert process.stdin is not None
        if process.stdin.transport.get_write_buffer_size():
            process.stdin.transport.abort()
        process._transport.close()  # type: ignore[attr-defined] # noqa: SLF001 - no other way
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            _log.error("the operating system has not ended the trainer's process %d", process.pid)
        if self._process is process:
            self._process = self._stderr = None
            self._is_open = False


async def _exchange(process: Process, job: Job) -> Reply:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(encode_frame(job))
    await process.stdin.drain()
    while True:
        length = frame_length(await process.stdout.readexactly(PREFIX_BYTES))
        reply = decode_reply(await process.stdout.readexactly(length))
        if reply.job == job.job:
            return reply


async def _log_lines(process: Process) -> None:
    """Log the process's lines at the level they name; what libraries print is a warning."""
    assert process.stderr is not None
    levels, rest = logging.getLevelNamesMapping(), b""
    while data := await process.stderr.read(4096):
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[-_MAX_LINE:]
        for line in lines:
            text = line[:_MAX_LINE].decode("utf-8", "replace")
            level = levels.get(text.partition(" ")[0], logging.WARNING)
            _log.log(level, "trainer: %s", "".join(c if c.isprintable() else " " for c in text))
