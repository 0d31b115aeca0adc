"""The trainer: a resident child process of the agent that does the numeric work.

Run as ``python -m fedagent_agent.trainer.process``; requests come on stdin, replies go to
stdout, see `frames`. It ends when stdin does, and looks at stdin between any two iterations, so
that it can be cancelled without threads. Of an exception it logs only type and place: nothing it
logs contains a sample.
"""

import argparse
import ctypes
import logging
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections import deque
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from .frames import (
    Cancel,
    Failed,
    FrameBuffer,
    FrameError,
    Job,
    Reply,
    decode_request,
    encode_frame,
)
from .training import Trainer

_log = logging.getLogger(__name__)

_READ_BYTES = 65_536
PR_SET_PDEATHSIG = 1
EXIT_TOLD = 128 + signal.SIGTERM
EXIT_WIRE = 3
"""Exit code when the agent's bytes are no requests."""


class Requests:
    """The requests on a file descriptor, in order; cancels overtake the others."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._frames = FrameBuffer()
        self._waiting: deque[Job] = deque()
        self._cancelled: int | None = None

    def next(self) -> Job:
        """Wait for the next request; `FrameError`: there will be none."""
        while not self._waiting:
            self._read()
        return self._waiting.popleft()

    def cancelled(self, job: int, wait_s: float = 0.0) -> bool:
        """Look whether this job was cancelled; wait for at most so long."""
        until = time.monotonic() + wait_s
        while self._cancelled != job:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._fd], [], [], left)[0]:
                return False
            self._read()
        return True

    def _read(self) -> None:
        data = os.read(self._fd, _READ_BYTES)
        if not data:
            raise FrameError("stdin is at its end", ended=True)
        for body in self._frames.feed(data):
            request = decode_request(body)
            if isinstance(request, Cancel):
                self._cancelled = request.job
            else:
                self._waiting.append(request)


def _place_of(error: BaseException) -> str:
    """Name an exception without its text, which might quote a sample."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


def serve(requests_fd: int, replies_fd: int) -> NoReturn:
    """Answer requests until `FrameError`: there are no more."""
    requests = Requests(requests_fd)
    trainer = Trainer(requests.cancelled)
    with closing(trainer):
        while True:
            _send(replies_fd, answer(trainer, requests.next()))


def answer(trainer: Trainer, job: Job) -> Reply:
    """Do a job; an unforeseen error becomes `Failed`, named by type and place."""
    try:
        return trainer.answer(job)
    except FrameError:
        raise
    except Exception as error:  # noqa: BLE001 - the top of a job
        place = _place_of(error)
        _log.error("job %d failed: %s", job.job, place)
        return Failed(job=job.job, reason="error", detail=place)


def _send(fd: int, reply: Reply) -> None:
    data = memoryview(encode_frame(reply))
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BrokenPipeError as error:
            raise FrameError("nobody reads the replies", ended=True) from error


def _log_place(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    del kind, trace
    _log.critical("the trainer ends: %s", _place_of(error))


def _stay_behind(nice: int, memory_bytes: int) -> None:
    """Let everything else on the device go first, and limit the memory of this process.

    Args:
        nice: Minimum niceness, 0 to 19; a process that is nicer already stays so.
        memory_bytes: Maximum resident memory, 0 for no limit. The kernel limits what is mapped and
            writable, much of which is never touched: what is so at the start comes on top.
    """
    if nice > os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    if memory_bytes:
        mapped, resident = _memory_now()
        most = mapped + max(0, memory_bytes - resident)
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))


def _end_with_parent() -> None:
    """Have Linux tell us of the agent's end: a learner in mid work does not read stdin."""
    signal.signal(signal.SIGTERM, _end_now)
    with suppress(AttributeError, OSError):  # other systems have no such call
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_now(number: int, frame: FrameType | None) -> None:
    """Take what a learner has started along; one that hangs in native code is not reached."""
    del number, frame
    _end_helpers()
    os._exit(EXIT_TOLD)


def _memory_now() -> tuple[int, int]:
    """Return bytes that are mapped as data, and bytes that are resident; 0 where unknown."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split()[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    return sizes.get("VmData:", 0) << 10, sizes.get("VmRSS:", 0) << 10


def main() -> int:
    """Serve the agent over stdin and stdout."""
    parser = argparse.ArgumentParser(prog="fedagent_agent.trainer.process")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--memory-bytes", type=int, default=0)
    given = parser.parse_args()
    _end_with_parent()
    _stay_behind(given.nice, given.memory_bytes)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sys.excepthook = _log_place
    # Whoever starts us in the group of a terminal: what Ctrl-C means, the agent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies_fd = os.dup(1)
    os.dup2(2, 1)  # a stray print must not end up between frames
    requests_fd = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # nor may a stray read take them
    # What a learner forks must not hold them: their end tells the agent that this process died.
    os.register_at_fork(
        after_in_child=lambda: [os.dup2(nothing, fd) for fd in (requests_fd, replies_fd)]
    )
    try:
        serve(requests_fd, replies_fd)
    except FrameError as error:
        if not error.ended:
            _log.critical("the trainer ends: %s", error)
        return 0 if error.ended else EXIT_WIRE
    finally:
        _end_helpers()


def _end_helpers() -> None:
    """End what a learner has started and left, where we have a group of our own."""
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
