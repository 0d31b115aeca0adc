"""What a process and everything it started cost, and how to end them all."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from bench.peers import tether

TERM_GRACE_S = 6.0
KILL_GRACE_S = 5.0
KILL_ATTEMPTS = 3
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied)


def spawn(command: list[str], *, log: Path, env: dict[str, str]) -> psutil.Popen:
    """Start a command as a process group of its own that cannot outlive us."""
    with log.open("ab") as out:
        return psutil.Popen(
            [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )


def cpu_seconds(root: psutil.Process) -> float:
    """Return the processor time of a tree, the children already reaped included.

    A child that has ended and is not reaped still counts, by its own figures.
    """
    total = 0.0
    for process in _tree(root):
        with suppress(*_GONE):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def pss_bytes(root: psutil.Process) -> int:
    """Return the proportional set size of a tree (shared pages divided by their users)."""
    total = 0
    for process in _tree(root):
        with suppress(*_GONE, OSError):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text("ascii")
            total += sum(
                int(line.split()[1]) << 10
                for line in rollup.splitlines()
                if line.startswith("Pss:")
            )
    return total


def stop_all() -> int:
    """End every descendant of this process; return how many had to be killed.

    Call `tether.adopt_orphans` before the first `spawn`, or a grandchild whose parent
    is gone escapes. Processes are named by pid and start time, never by name.
    """
    alive = psutil.Process().children(recursive=True)
    _signal(alive, signal.SIGTERM)
    psutil.wait_procs(alive, timeout=TERM_GRACE_S)
    killed = 0
    # What was adopted while its parent ended is found by looking again.
    for _ in range(KILL_ATTEMPTS):
        rest = [p for p in psutil.Process().children(recursive=True) if not _ended(p)]
        if not rest:
            break
        killed += len(rest)
        _signal(rest, signal.SIGKILL)
        psutil.wait_procs(rest, timeout=KILL_GRACE_S)
    _reap()
    return killed


def living(process: psutil.Process) -> bool:
    """Return whether the process has not ended."""
    return not _ended(process)


def busy(root: psutil.Process) -> bool:
    """Return whether a child of the process has living children of its own."""
    return any(not _ended(p) and p.ppid() != root.pid for p in _tree(root)[1:])


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(*_GONE):
            process.send_signal(number)


def _ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _reap() -> None:
    """Collect the adopted children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
