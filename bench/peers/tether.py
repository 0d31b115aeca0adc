"""Run a command that the kernel kills as soon as the process that started it is gone.

``python tether.py PARENT_PID COMMAND ...``. The request survives exec, so nothing of
this process stays. Imports little: its start counts in the peer's start-up time.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    os.execvp(command[0], command)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


if __name__ == "__main__":
    main()
