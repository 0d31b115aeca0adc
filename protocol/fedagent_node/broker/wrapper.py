"""Run a mosquitto that ends with the process that started it, however that ends.

The parent holds the other end of our standard input, which the kernel closes when it is gone.
Should we be killed ourselves, the kernel kills mosquitto, which asked for that. We write the
broker's process id first, and then a line of JSON (`process.Told`) for what the parent wants to
know of the broker's clients. `embedded` does the same with the broker in its own process.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Never

from fedagent_protocol.bucket import TokenBucket

PR_SET_PDEATHSIG = 1
TERM_GRACE_S = 1.0
LOG_BYTES = 1 << 20
"""Of a broker's words the rest is forgotten: a flood must not fill a disk."""
TOLD_PER_S = 50.0
_TAKEN_OVER = re.compile(r"Client (.+) already connected, closing old connection\.")


def main(program: str, config: str) -> int:
    """Run mosquitto with a configuration; return its exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def die_with_us() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    # This process has one thread here, so that the hook between fork and exec is safe.
    broker = subprocess.Popen(
        [program, "-c", config],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=Path(config).parent,  # for its side door, whose path must be short
        umask=0o077,
        preexec_fn=die_with_us,  # noqa: PLW1509 - see above
    )
    announce(broker.pid)

    def stop() -> Never:
        broker.terminate()
        try:
            broker.wait(TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            broker.kill()
        os._exit(0)

    when_parent_goes(stop)
    assert broker.stderr is not None
    _relay(broker.stderr)
    return broker.wait()


def _relay(words: IO[bytes]) -> None:
    """Tell the parent what concerns it, and log the rest."""
    tell, room = Teller(), LOG_BYTES
    for raw in words:
        line = raw.decode("utf-8", errors="replace").rstrip()
        if (found := _TAKEN_OVER.fullmatch(line)) is not None:
            tell(taken_over=found[1])
        elif room > 0:
            room -= len(raw)
            os.write(sys.stderr.fileno(), raw)


class Teller:
    """Lines for the parent; what is too much for it is left out."""

    def __init__(self) -> None:
        # A parent that stands still must not stop the broker.
        os.set_blocking(sys.stdout.fileno(), False)
        self._lines = TokenBucket(TOLD_PER_S, TOLD_PER_S)

    def __call__(self, **facts: object) -> bool:
        """Write a line, or return False."""
        if not self._lines.take(time.monotonic()):
            return False
        try:
            os.write(sys.stdout.fileno(), json.dumps(facts).encode() + b"\n")
        except OSError:
            return False
        return True


def announce(pid: int) -> None:
    """Tell the parent the broker's process."""
    os.write(sys.stdout.fileno(), f"{pid}\n".encode())


def when_parent_goes(
    stop: Callable[[], Never], order: Callable[[bytes], object] = lambda _: None
) -> None:
    """Have a thread pass on what the parent writes, and stop when it is gone."""

    def watch() -> None:
        with os.fdopen(sys.stdin.fileno(), "rb", closefd=False) as orders:
            for line in orders:
                order(line)
        stop()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
