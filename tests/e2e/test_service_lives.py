"""A service under a real systemd: from install to running, after kill -9, after a reboot.

It is the manager of one user, of our own units alone, in namespaces of its own: a "reboot" is
the end of everything in there and a new manager. Sandboxes of the system's units are not in it:
tests/cli/test_service.py has what systemd-analyze says of them.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SYSTEMD = Path("/lib/systemd/systemd")
HIERARCHY = Path("/sys/fs/cgroup/systemd")
STUBS = ("basic", "default", "shutdown", "exit", "sysinit")
# Never as process 1 itself: that would be a manager of the whole system, whatever it is told.
SHELL = """
mount -t tmpfs none /run
mkdir -p /run/systemd/system
echo 0 > "$1/cgroup.procs"
ip link set lo up
"$0" --user --log-target=console
"""
pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(
        os.geteuid() != 0
        or not SYSTEMD.exists()
        or not os.access(HIERARCHY, os.W_OK)
        or shutil.which("nsenter") is None,
        reason="needs root, systemd and its cgroups",
    ),
]


class Boot:
    """A user's systemd as the first process of its own machine."""

    def __init__(self, folder: Path) -> None:
        empty = folder / "empty"
        stubs = folder / "stubs"
        (folder / "run").mkdir(exist_ok=True, mode=0o700)
        for made in (empty, stubs):
            made.mkdir(exist_ok=True)
        for name in STUBS:
            after = "DefaultDependencies=no\n" if name == "shutdown" else ""
            (stubs / f"{name}.target").write_text(f"[Unit]\nDescription={name}\n{after}")
        units = folder / "config/systemd/user"
        self.environment = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "FEDAGENT_HOME": str(folder / "data"),
            "FEDAGENT_WARM": "off",
            # Nothing of the machine's own: no unit that cleans, mounts or starts anything.
            "SYSTEMD_UNIT_PATH": f"{units}:{stubs}",
            "SYSTEMD_GENERATOR_PATH": str(empty),
            "SYSTEMD_ENVIRONMENT_GENERATOR_PATH": str(empty),
        }
        with (folder / "systemd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc"),
                    *("--kill-child=KILL", "sh", "-c", SHELL, str(SYSTEMD), str(folder_of(folder))),
                ],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        socket = folder / "run/systemd/private"
        try:
            wait(socket.exists)
        except AssertionError:
            self._process.kill()
            self._process.wait(10)
            pytest.skip((folder / "systemd.log").read_text() or "systemd does not begin here")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self.pid = int(children.read_text())

    def runs(self, *words: str) -> str:
        """Run a command inside; return what it says."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.pid), "-n", "-p", "-m", "--", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def main_pid(self, unit: str) -> int:
        """Return a unit's main process as it is called inside, once it said READY; else 0."""
        said = self.runs("systemctl", "--user", "show", "-p", "ActiveState,MainPID", unit)
        found = dict(line.split("=") for line in said.splitlines())
        return int(found["MainPID"]) if found["ActiveState"] == "active" else 0

    def pulls_the_plug(self) -> None:
        """End everything at once."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(10)
        shutil.rmtree(Path(self.environment["XDG_RUNTIME_DIR"]) / "systemd", ignore_errors=True)


def folder_of(folder: Path) -> Path:
    return HIERARCHY / f"fedagent-{folder.name}"


def wait(condition: Callable[[], bool]) -> None:
    """Wait until something holds; a service that does not come back never will."""
    until = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


@contextmanager
def machine() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fsv") as name:  # sockets want short paths
        folder = Path(name)
        folder_of(folder).mkdir()
        try:
            yield folder
        finally:
            time.sleep(0.2)
            for path in sorted(folder_of(folder).rglob("*"), reverse=True):
                if path.is_dir():
                    path.rmdir()
            folder_of(folder).rmdir()


@pytest.mark.parametrize("role", ["agent", "edge", "coordinator"])
def test_it_runs_after_install_kill_and_reboot(role: str) -> None:
    fedagent = str(Path(sys.executable).parent / "fedagent")
    unit = f"fedagent-{role}"
    with machine() as folder:
        boot = Boot(folder)
        try:
            boot.runs(fedagent, "service", "install", role, "--mine")
            first = boot.main_pid(unit)
            assert first
            boot.runs("kill", "-9", str(first))
            wait(lambda: boot.main_pid(unit) not in (0, first))
            boot.pulls_the_plug()
            boot = Boot(folder)
            wait(lambda: boot.main_pid(unit) != 0)
            boot.runs(fedagent, "service", "uninstall", role, "--mine")
            assert boot.main_pid(unit) == 0
        finally:
            boot.pulls_the_plug()
