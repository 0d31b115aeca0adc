"""The agent's side of the trainer process: started lazily, killed when it must be.

Imports no numpy: the agent itself stays small.
"""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine
from pathlib import Path

from msgspec.structs import replace

from .frames import (
    PREFIX_BYTES,
    Cancel,
    Evaluate,
    Evaluated,
    Failed,
    FrameError,
    Job,
    Mask,
    Masked,
    Open,
    Opened,
    Refused,
    Reply,
    Stop,
    Train,
    Trained,
    decode_reply,
    encode_frame,
    frame_length,
)

MAX_WAITING = 16
WATCHDOG_S = 3600.0
"""Longest that a job may take before the process is killed."""
LAST_LINES_S = 1.0
"""How long the lines of a process that has ended may still come."""
OPEN_S = 120.0
"""The same for starting the process and opening a stream."""

_log = logging.getLogger(__name__)

_COMMAND = ("-P", "-m", "fedagent_agent.trainer.process")
# Numpy's small products gain nothing from more threads, and an idle pool costs memory; torch
# sets its own number (`learners.torch_device`), below an owner's OMP_NUM_THREADS.
_THREADS = ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_MAX_LINE = 500
_ANSWERS: dict[type[Job], tuple[type[Reply], ...]] = {
    Open: (Opened, Refused),
    Train: (Trained,),
    Mask: (Masked,),
    Evaluate: (Evaluated,),
}


Spawn = Callable[[Coroutine[object, object, None], str], asyncio.Task[None]]


def _create_task(work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work, name=name)


class _ProcessEndedError(Exception):
    """Raised when the process ended before it answered: ``died``, or why it was killed."""


class TrainerClient:
    """Keep one trainer process, and have it do one job at a time.

    Every job has exactly one answer, whatever becomes of the process. One that was killed or died
    is started anew by the next job, and goes on where its stream was.

    Args:
        grace_s: How long a cancelled training may go on before the kill.
        memory_bytes: Memory limit of the process; 0 for none.
        on_end: Called when a process has ended, and with it what the learner remembered.
        spawn: Runs a task beside others under a name.
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
        self._killer: asyncio.TimerHandle | None = None
        self._process: Process | None = None
        self._stderr: asyncio.Task[None] | None = None
        self._killed_for = ""
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
        if len(self._jobs) > MAX_WAITING:
            return Failed(job=job.job, reason="error", detail="too many jobs wait")
        self._jobs[job.job] = False
        try:
            async with self._turn:
                self._running = job.job
                try:
                    cancelled = Failed(job=job.job, reason="cancelled")
                    return cancelled if self._jobs[job.job] else await self._answer(job)
                finally:
                    self._running = None
                    if self._killer is not None:
                        self._killer.cancel()
                        self._killer = None
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
        if self._killer is None:
            loop = asyncio.get_running_loop()
            self._killer = loop.call_later(self._grace_s, self._kill, "cancelled")

    async def close(self) -> None:
        """End the process: asked first, then killed. Idempotent."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(encode_frame(Stop(job=0)))
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), self._grace_s)
        except TimeoutError:
            self._kill("died")
        await self._bury(process)

    async def _answer(self, job: Job) -> Reply:
        """Do a job; whatever goes wrong is an answer, and the queue goes on."""
        try:
            if isinstance(job, Open):
                self._wanted, self._is_open = job, False
            elif not (self._is_open and self._is_usable):
                failed = await self._open_again(job)
                if failed is not None:
                    return failed
            if self._jobs.get(job.job):
                return Failed(job=job.job, reason="cancelled")
            reply = await self._ask(job)
        except _ProcessEndedError as error:
            if isinstance(job, Train | Mask):
                out = Path(job.out)
                for part in out.parent.glob(f".{out.name}.*"):
                    part.unlink(missing_ok=True)
            return Failed(job=job.job, reason=str(error))
        except Exception as error:  # noqa: BLE001 - the answer carries it on
            _log.exception("the trainer could not be used")
            return Failed(job=job.job, reason="error", detail=type(error).__name__)
        if isinstance(job, Open):
            self._is_open = isinstance(reply, Opened)
            if isinstance(reply, Failed) and reply.reason != "memory":
                detail = "stream: the trainer could not open it"
                return Refused(job=job.job, key="stream", detail=detail)
        if isinstance(reply, (*_ANSWERS[type(job)], Failed)):
            return reply
        return Failed(job=job.job, reason="error", detail="an answer of the wrong kind")

    async def _open_again(self, job: Job) -> Failed | None:
        """Open the stream in a new process before a job; return the job's failure, if any."""
        if self._wanted is None:
            return Failed(job=job.job, reason="stream", detail="stream: none was opened")
        match await self._answer(self._wanted):
            case Refused(detail=detail):
                return Failed(job=job.job, reason="stream", detail=detail)
            case Failed() as failed:
                return replace(failed, job=job.job, offset=None)
            case _:
                return None

    # ---------------------------------------------------------------- process

    async def _ask(self, job: Job) -> Reply:
        seconds = OPEN_S if isinstance(job, Open) else WATCHDOG_S
        if isinstance(job, Train) and job.timeout_s > 0:
            seconds = job.timeout_s
        watchdog = asyncio.get_running_loop().call_later(seconds, self._kill, "timeout")
        try:
            process = await self._ensure()
            reply = await _exchange(process, job)
        except (asyncio.IncompleteReadError, ConnectionError, FrameError) as error:
            if self._process is not None:
                self._kill("died")
                await self._bury(self._process)
            raise _ProcessEndedError(self._killed_for or "died") from error
        except asyncio.CancelledError:
            self._kill("cancelled")
            raise
        finally:
            watchdog.cancel()
        if isinstance(reply, Trained | Failed) and reply.offset is not None and self._wanted:
            self._wanted = replace(self._wanted, offset=reply.offset)
        if isinstance(reply, Failed) and reply.reason == "memory":
            # A heap in pieces is of no use: only the end of the process gives it back.
            self._kill("memory")
            await self._bury(process)
        return reply

    @property
    def _is_usable(self) -> bool:
        process = self._process
        # Its end is seen on stderr before the system says its exit code.
        ended = self._stderr is not None and self._stderr.done()
        alive = process is not None and process.returncode is None
        return alive and not (ended or self._killed_for)

    async def _ensure(self) -> Process:
        if self._process is not None:
            if self._is_usable:
                return self._process
            await self._bury(self._process)
        self._is_open = False
        self._killed_for = ""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_COMMAND,
            *self._arguments,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
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

    def _kill(self, reason: str) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            self._killed_for = self._killed_for or reason
            process.kill()

    async def _bury(self, process: Process) -> None:
        try:
            await asyncio.wait_for(process.wait(), LAST_LINES_S)
        except TimeoutError:
            # What a package's code started may hold on to the pipes for ever.
            process._transport.close()  # type: ignore[attr-defined] # noqa: SLF001 - no other way
            await process.wait()
        if self._stderr is not None:
            await asyncio.gather(self._stderr, return_exceptions=True)
        if process.stdin is not None:
            process.stdin.close()
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
