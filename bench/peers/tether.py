"""Run a command, and end all that came of it when it ends or when our parent is gone.

``python tether.py PARENT_PID COMMAND ...``. A peer's programs start programs of their
own, some in sessions of their own; as their reaper we get them back when they are
orphaned. Imports little: its start counts in the peer's start-up time.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def main() -> None:
    """Run the command; exit with its code, or 128 + the signal that ended it or us."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    child = os.posix_spawn(command[0], command, os.environ, setsigmask=())
    code: int | None = None
    while code is None:
        number = signal.sigwait(_WATCHED)
        code = _reap(child) if number == signal.SIGCHLD else 128 + number
    _end_children()
    sys.exit(code)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _reap(child: int) -> int | None:
    """Collect who has ended; return the code of `child` if it is among them."""
    code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                status = os.waitstatus_to_exitcode(ended[1])
                code = status if status >= 0 else 128 - status
    return code


def _end_children() -> None:
    """Kill generation after generation: the children of the killed become ours."""
    own = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(ChildProcessError):
        while True:
            for pid in own.read_text("ascii").split():
                # It is ours and not yet waited for, so the id cannot be another's.
                os.kill(int(pid), signal.SIGKILL)
            os.waitpid(-1, 0)


if __name__ == "__main__":
    main()
