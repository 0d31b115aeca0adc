"""The agent's side of its trainer process: started once, lazily; killed when it must be.

Imports no numpy: the agent itself stays small.
"""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

import msgspec

from .trainer_wire import (
    Cancel,
    EvaluationRequest,
    EvaluationResult,
    Failed,
    Open,
    Opened,
    Refused,
    Reply,
    Request,
    Stop,
    Train,
    Trained,
    TrainerWireError,
    decode_reply,
    encode_frame,
    frame_length,
)

_log = logging.getLogger(__name__)

_COMMAND = ("-P", "-m", "fedagent_agent.trainer")
# Small products gain nothing from more threads, and an idle pool costs memory.
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_MAX_LINE = 500


class TrainerError(Exception):
    """Base of the errors of the trainer's client."""


class TrainerRefusedError(TrainerError):
    """Raised when the stream does not fit the task.

    Attributes:
        key: The recipe's or the stream's key that does not fit.
        detail: One line that says why.
    """

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(key, detail)
        self.key = key
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


class TrainerDiedError(TrainerError):
    """Raised when the process ended before it answered.

    Attributes:
        reason: ``died``, ``timeout`` or ``cancelled``; the last two: it was killed.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TrainerMemoryError(TrainerError):
    """Raised when the stream and the task do not fit into the process's memory limit."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class TrainerClient:
    """Keeps one trainer process, and asks it one thing at a time.

    A process that was killed or died is started anew by the next request, and
    goes on where its stream was.

    Args:
        watchdog_s: Longest a training may take before the process is killed.
        open_s: The same for starting the process and opening a stream.
        grace_s: How long a cancelled training may go on before the kill.
        nice: Niceness of the process, so that it stays behind the device's own work.
        memory_bytes: Most memory of the process; 0 for no bound.
        on_end: Called when a process has ended, whatever ended it, and with it what the
            learner remembered.
    """

    def __init__(
        self,
        *,
        watchdog_s: float = 3600.0,
        open_s: float = 120.0,
        grace_s: float = 2.0,
        nice: int = 0,
        memory_bytes: int = 0,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = ("--nice", str(nice), "--memory-bytes", str(memory_bytes))
        self._on_end = on_end
        self._watchdog_s = watchdog_s
        self._open_s = open_s
        self._grace_s = grace_s
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._stderr: asyncio.Task[None] | None = None
        self._job = 0
        self._training: int | None = None
        self._give_up = False
        self._killer: asyncio.TimerHandle | None = None
        self._killed_for = ""
        self._wanted: Open | None = None
        self._is_open = False
        self.starts = 0
        """Processes started so far."""

    @property
    def pid(self) -> int | None:
        """Process id, while there is a process."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process if there is none, so that the first round need not wait."""
        async with self._turn:
            await self._ensure()

    async def open(
        self,
        task: bytes,
        stream: str,
        *,
        seed: int,
        offset: int = 0,
        slow_s: float = 0.0,
        held_out: str = "",
    ) -> Opened:
        """Open a stream for a task, in the place of any other.

        Args:
            task: Canonical bytes of the task.
            stream: Description of the stream.
            seed: Of the stream's order and of the learner.
            offset: Where to go on in the stream.
            slow_s: Extra seconds of every training; for demos and tests.
            held_out: Description of a stream that is only evaluated by.

        Raises:
            TrainerRefusedError: It does not fit; names the key.
            TrainerDiedError: There was no answer.
            TrainerMemoryError: It needs more memory than the process may have.
        """
        async with self._turn:
            self._wanted = Open(
                job=0,
                task=task,
                stream=stream,
                seed=seed,
                offset=offset,
                slow_s=slow_s,
                held_out=held_out,
            )
            self._is_open = False
            return await self._open()

    async def train(
        self,
        model: Path,
        out: Path,
        *,
        iterations: int = 0,
        timeout_s: float | None = None,
        load_limit_s: float = 0.0,
    ) -> Trained | Failed:
        """Train from a model file and write the update to `out`.

        Never raises for what the process does: a death is `Failed` too.

        Args:
            model: Safetensors file of the base.
            out: Where the update goes; complete and durable, or not there.
            iterations: Local iterations rho; 0 for the learner's default.
            timeout_s: Instead of the watchdog's time.
            load_limit_s: Seconds of computation that it may take; 0 for no limit.
        """
        async with self._turn:
            # Opening anew may take one number before.
            self._training = self._job + 2
            try:
                await self._ensure()
                if not self._is_open:
                    await self._open()
                if self._give_up:
                    return Failed(job=self._training, reason="cancelled")
                self._job = self._training - 1
                request = Train(
                    job=0,
                    model=str(model),
                    out=str(out),
                    iterations=iterations,
                    load_limit_s=load_limit_s,
                )
                reply = await self._ask(request, timeout_s or self._watchdog_s)
            except TrainerError as error:
                if isinstance(error, TrainerDiedError):
                    out.with_name(f".{out.name}.part").unlink(missing_ok=True)
                return _failed(self._job, error)
            finally:
                self._training, self._give_up = None, False
                self._disarm()
        if isinstance(reply, Trained | Failed):
            return reply
        return Failed(job=self._job, reason="error", detail="an answer of the wrong kind")

    async def evaluate(self, model: Path, *, moments: bool = False) -> EvaluationResult | Failed:
        """Score a model file on samples that nobody has learnt from yet, or add these up.

        Never raises for what the process does, and is not cancelled: it is short.
        """
        async with self._turn:
            try:
                await self._ensure()
                if not self._is_open:
                    await self._open()
                reply = await self._ask(
                    EvaluationRequest(job=0, model=str(model), moments=moments), self._watchdog_s
                )
            except TrainerError as error:
                return _failed(self._job, error)
        if isinstance(reply, EvaluationResult | Failed):
            return reply
        return Failed(job=self._job, reason="error", detail="an answer of the wrong kind")

    def cancel(self) -> None:
        """Give up the training that runs: `train` returns `Failed(cancelled)`.

        The process is killed if it does not obey within the grace. Without a
        training this does nothing.
        """
        if self._training is None:
            return
        self._give_up = True
        stdin = self._process.stdin if self._process else None
        if stdin is not None and not stdin.is_closing():
            stdin.write(encode_frame(Cancel(job=self._training)))
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

    async def _open(self) -> Opened:
        if self._wanted is None:
            raise TrainerRefusedError("stream", "stream: none was opened")
        reply = await self._ask(self._wanted, self._open_s)
        match reply:
            case Opened():
                self._is_open = True
                return reply
            case Refused():
                raise TrainerRefusedError(reply.key, reply.detail)
            case Failed() if reply.reason == "memory":
                raise TrainerMemoryError(reply.detail)
            case Trained() | EvaluationResult() | Failed():
                raise TrainerRefusedError("stream", "stream: the trainer could not open it")
            case _:
                assert_never(reply)

    async def _ask(self, request: Open | Train | EvaluationRequest, timeout_s: float) -> Reply:
        """Send a request under the next number and wait for its answer."""
        self._job += 1
        loop = asyncio.get_running_loop()
        watchdog = loop.call_later(timeout_s, self._kill, "timeout")
        try:
            process = await self._ensure()
            reply = await self._exchange(process, msgspec.structs.replace(request, job=self._job))
        except (asyncio.IncompleteReadError, ConnectionError, TrainerWireError) as error:
            if self._process is not None:
                self._kill("died")
                await self._bury(self._process)
            raise TrainerDiedError(self._killed_for or "died") from error
        except asyncio.CancelledError:
            # Nobody waits for the answer any more: the process must not go on.
            self._kill("cancelled")
            raise
        finally:
            watchdog.cancel()
        self._remember(reply)
        if isinstance(reply, Failed) and reply.reason == "memory":
            # A heap in pieces is of no use: only the end of the process gives it back.
            self._kill("memory")
            await self._bury(process)
        return reply

    async def _exchange(self, process: Process, request: Request) -> Reply:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(encode_frame(request))
        await process.stdin.drain()
        while True:
            length = frame_length(await process.stdout.readexactly(4))
            reply = decode_reply(await process.stdout.readexactly(length))
            if reply.job == request.job:
                return reply

    def _remember(self, reply: Reply) -> None:
        """Keep the stream's position for a process that is started anew."""
        offset = reply.offset if isinstance(reply, Trained | Failed) else None
        if offset is not None and self._wanted is not None:
            self._wanted = msgspec.structs.replace(self._wanted, offset=offset)

    async def _ensure(self) -> Process:
        """Return the process, started if need be."""
        old = self._process
        # Its end is seen on stderr before the system says its exit code.
        ended = self._stderr is not None and self._stderr.done()
        if old is not None and old.returncode is None and not (ended or self._killed_for):
            return old
        if old is not None:
            await self._bury(old)
        self._is_open = False
        self._killed_for = ""
        environment = {**dict.fromkeys(_THREADS, "1"), **os.environ}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_COMMAND,
            *self._limits,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment,
        )
        self.starts += 1
        self._stderr = asyncio.create_task(self._watch(self._process), name="trainer-stderr")
        return self._process

    async def _watch(self, process: Process) -> None:
        """Pass on what the process logs until it ends, and tell that it did."""
        await _log_lines(process)
        self._on_end()

    def _kill(self, why: str) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._killed_for = self._killed_for or why
        process.kill()

    async def _bury(self, process: Process) -> None:
        """Wait for the end of the process and of what read it."""
        await process.wait()
        if self._stderr is not None:
            await self._stderr
        if process.stdin is not None:
            process.stdin.close()
        self._process = self._stderr = None
        self._is_open = False

    def _disarm(self) -> None:
        if self._killer is not None:
            self._killer.cancel()
            self._killer = None


def _failed(job: int, error: TrainerError) -> Failed:
    """Return the answer that an error is."""
    match error:
        case TrainerRefusedError():
            return Failed(job=job, reason="stream", detail=error.detail)
        case TrainerMemoryError():
            return Failed(job=job, reason="memory", detail=error.detail)
        case TrainerDiedError():
            return Failed(job=job, reason=error.reason)
        case _:
            return Failed(job=job, reason="error", detail=type(error).__name__)


async def _log_lines(process: Process) -> None:
    """Pass the process's log on, line by line, until it ends."""
    assert process.stderr is not None
    rest = b""
    while data := await process.stderr.read(4096):
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[-_MAX_LINE:]
        for line in lines:
            _log.log(_level_of(line), "trainer: %s", _printable(line))


def _level_of(line: bytes) -> int:
    """Return the level that a line of the trainer names; what libraries print is a warning."""
    name = line.partition(b" ")[0].decode("ascii", "replace")
    return logging.getLevelNamesMapping().get(name, logging.WARNING)


def _printable(line: bytes) -> str:
    text = line[:_MAX_LINE].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text)
