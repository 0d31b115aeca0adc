"""However a start fails: one line on stderr, with --json one object last, a documented code."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedagent_coordinator.picture.status_files import Page
from fedagent_node.data_dir import hold_data_dir
from tests.coordinator.web.served import served
from tests.fakes.written_runs import write_run
from tests.typed import fedagent

DEMO = ("coordinator", "start", "--recipe", "demo", "--broker", "embedded", "--discovery", "off")
EDGE = ("edge", "start", "--broker", "embedded", "--discovery", "off")
AGENT = ("start", "--stream", "digits", "--discovery", "off")


def run(
    *arguments: str, home: Path, file_bytes: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command; `file_bytes` stands for a disk on which no file can grow beyond it."""

    if file_bytes is None:
        return fedagent(*arguments, env={"FEDAGENT_HOME": str(home)})

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    return subprocess.run(
        [sys.executable, "-m", "fedagent_cli", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "FEDAGENT_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=limit,
    )


def said(done: subprocess.CompletedProcess[str], code: int) -> dict[str, object]:
    """Return the last line of standard output, after what holds for every failure."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    last: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    assert set(last) == {"error", "hint", "exit_code"}
    assert last["exit_code"] == code
    assert last["error"]
    line = done.stderr.splitlines()[-1]
    assert str(last["error"]) in line
    assert str(last["hint"]) in line
    return last


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((*DEMO, "--set", "rounds.count=x", "--print-config"), 2, "rounds.count"),
        ((*DEMO, "--set", "evaluation.dataset=/no/such"), 36, "/no/such"),
        ((*DEMO, "--policy", "quick-init-ucb", "--set", "opinions.mode=off"), 34, "needs opinions"),
        ((*AGENT[:2], "digits:labels=77", *AGENT[3:]), 13, "has no sample with these labels"),
    ],
)
def test_what_cannot_be_run(
    tmp_path: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    last = said(run(*arguments, "--json", home=tmp_path), code)
    assert text in str(last["error"])
    assert last["hint"]
    assert not list(tmp_path.rglob("coordinator.db"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nonsense",), "see --help"),
        (("demo", "--agents", "0"), "see --help"),
        ((*DEMO, "--grace-s", "nan"), "--grace-s': "),
        ((*AGENT, "--slow-s", "-inf"), "--slow-s': "),
        ((*AGENT, "--join", ""), "--join is empty"),
    ],
)
def test_what_is_typed_wrong_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    last = said(run(*arguments, "--json", home=tmp_path), 2)
    assert says in f"{last['error']} {last['hint']}"


def test_a_folder_that_cannot_be_a_data_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = run(*EDGE, "--data-dir", str(file / "below"), "--json", home=tmp_path)
    last = said(done, 2)
    assert str(file) in str(last["error"])
    assert "--data-dir" in str(last["hint"])


@pytest.mark.parametrize(
    ("start", "file_bytes", "code"),
    [
        (DEMO, 4096, 33),
        (EDGE, 0, 21),
        (AGENT, 4096, 12),
        (AGENT, 0, 10),
    ],
)
def test_a_full_disk(tmp_path: Path, start: tuple[str, ...], file_bytes: int, code: int) -> None:
    said(run(*start, "--json", home=tmp_path, file_bytes=file_bytes), code)


@pytest.mark.parametrize(
    ("start", "code", "spoilt"),
    [
        (EDGE, 20, "identity.json"),
        (AGENT, 12, "books.sqlite"),
        (DEMO, 32, "coordinator.db"),
    ],
)
def test_a_damaged_file(tmp_path: Path, start: tuple[str, ...], code: int, spoilt: str) -> None:
    path = tmp_path / "here" / spoilt
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no such thing" * 1000)
    last = said(run(*start, "--data-dir", str(tmp_path / "here"), "--json", home=tmp_path), code)
    assert path.name in str(last["error"])
    assert last["hint"]


def test_ctrl_c_is_an_end_of_any_command_whatever_is_imported_then() -> None:
    code = """
import os, signal, sys
import fedagent_cli.main
from fedagent_cli.__main__ import main

def run():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except Exception:
        pass  # as libraries do around what is optional

fedagent_cli.main.run = run
sys.argv = ["fedagent", "status", "--json"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert said(done, 130)["error"] == "interrupted"


@pytest.mark.parametrize("role", [AGENT, DEMO], ids=["agent", "coordinator"])
def test_ctrl_c_while_a_role_is_loaded_is_a_clean_end(
    tmp_path: Path, role: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "fedagent_cli", *role, "--data-dir", str(tmp_path / "here")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as started:
        # Its command line is that of the role once the command has become it.
        line = Path(f"/proc/{started.pid}/cmdline")
        while b"--config" not in line.read_bytes():
            assert started.poll() is None
            time.sleep(0.005)
        started.send_signal(signal.SIGINT)
        _, said_there = started.communicate(timeout=600)
    assert "Traceback" not in said_there
    assert started.returncode == 0


def test_the_link_of_the_page_is_told_while_a_coordinator_serves_it(tmp_path: Path) -> None:
    write_run(tmp_path)
    asked = ("status", "--page", "--data-dir", str(tmp_path), "--json")
    with served(tmp_path) as page:
        assert "no running coordinator of" in str(said(fedagent(*asked), 40)["error"])
        with hold_data_dir(tmp_path):
            told = json.loads(fedagent(*asked).stdout)
    assert told["link"] == f"{page.url}#token={page.token}"
    # Another program has the port now: it is to get no token.
    place = urlsplit(page.url)
    with socket.create_server((str(place.hostname), place.port or 0)), hold_data_dir(tmp_path):
        assert "without --no-web" in str(said(fedagent(*asked), 40)["hint"])
    kept = Page.read(tmp_path)
    assert kept is not None
    assert kept.token == page.token
