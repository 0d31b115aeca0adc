"""What a peer's processes and everything they start cost, and how to end them all."""

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
    """Start a command below a tether (which see) and return the tether.

    The functions here take tethers and count what is below them, not the tether.
    """
    with log.open("ab") as out:
        return psutil.Popen(
            [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )


def cpu_seconds(held: psutil.Process) -> float:
    """Return the processor time of all below a tether, those already reaped included.

    A process that has ended and is not reaped still counts, by its own figures.
    """
    times = held.cpu_times()
    total = times.children_user + times.children_system
    for process in held.children(recursive=True):
        with suppress(*_GONE):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return float(total)


def pss_bytes(held: psutil.Process) -> int:
    """Return the proportional set size below a tether: shared pages count by their share."""
    total = 0
    for process in held.children(recursive=True):
        with suppress(*_GONE, OSError):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text("ascii")
            total += sum(
                int(line.split()[1]) << 10
                for line in rollup.splitlines()
                if line.startswith("Pss:")
            )
    return total


def busy(held: psutil.Process) -> bool:
    """Return whether anything lives below the children of the tethered process."""
    calm = {held.pid, *(p.pid for p in held.children())}
    return any(living(p) and p.ppid() not in calm for p in held.children(recursive=True))


def living(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def stop_all(tethers: list[psutil.Popen]) -> None:
    """End every tether, and with each all that is below it; collect what is left.

    Call `tether.adopt_orphans` before the first `spawn`: what a tether that was
    killed leaves behind then comes to us.
    """
    _signal(list(tethers), signal.SIGTERM)
    psutil.wait_procs(tethers, timeout=TERM_GRACE_S)
    for _ in range(KILL_ATTEMPTS):
        rest = [p for p in psutil.Process().children(recursive=True) if living(p)]
        if not rest:
            break
        _signal(rest, signal.SIGKILL)
        psutil.wait_procs(rest, timeout=KILL_GRACE_S)
    _reap()


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(*_GONE):
            process.send_signal(number)


def _reap() -> None:
    """Collect the adopted children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
