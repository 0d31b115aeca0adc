"""Start commands in one home folder, for tests that add what they need to the lines.

The documents' own lines are typed as they stand in tests/documents.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CLI = (sys.executable, "-m", "fedagent_cli.main")


class Terminals:
    """Commands typed in one home folder, on a site of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.site = f"test-{secrets.token_hex(4)}"
        self.environment = {**os.environ, "FEDAGENT_HOME": str(home)}
        self.running: list[subprocess.Popen[str]] = []

    def start(self, line: str, *more: str) -> subprocess.Popen[str]:
        """Type a start command; it runs on."""
        own = ("--site", self.site, "--discovery", "loopback", "--json", *more)
        with (self.home / f"{len(self.running)}.log").open("w") as log:
            process = subprocess.Popen(
                [*CLI, *line.split(), *own],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
            )
        self.running.append(process)
        return process

    def call(self, line: str) -> subprocess.CompletedProcess[str]:
        """Type a command and wait for its end."""
        return subprocess.run(
            [*CLI, *line.split()],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment,
        )


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    typed = Terminals(tmp_path)
    yield typed
    for process in reversed(typed.running):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in typed.running:
        assert process.wait(60) in (0, 75)
        assert process.stdout is not None
        process.stdout.close()


def until(process: subprocess.Popen[str], kind: str) -> dict[str, object]:
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        assert isinstance(event, dict)
        if event["event"] == kind:
            return event
    raise AssertionError(f"ended with {process.wait(60)} and never said {kind}")
