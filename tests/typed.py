"""`fedagent` as it is typed: a process for each call, forked from one that has imported it."""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click

from fedagent_cli.main import COMMANDS, app

from .nest import Call


def fedagent(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command, and return what it said and its exit code.

    Args:
        arguments: What is typed behind ``fedagent``.
        cwd: Where it is typed; the folder of the tests by default.
        env: Variables beside those that there are.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        call = Call(
            arguments=list(arguments),
            cwd=str(cwd or Path.cwd()),
            env={**os.environ, **(env or {})},
            out=str(out),
            err=str(err),
        )
        code = _asked(json.dumps(call))
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


def call(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a home folder of its own."""
    return fedagent(*arguments, cwd=home, env={"FEDAGENT_HOME": str(home), "COLUMNS": "120"})


def install(site: Path, pyproject: str) -> None:
    """Do what pip does for an editable install: name the package and its entry points."""
    table = tomllib.loads(pyproject)["project"]
    info = site / f"{table['name'].replace('-', '_')}-{table['version']}.dist-info"
    info.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {table['name']}\nVersion: {table['version']}\n"
    (info / "METADATA").write_text(head)
    lines = []
    for group, names in table.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Yield what is typed for each command, and the command."""
    for name, lazy in COMMANDS.items():
        command = lazy.load()
        if isinstance(command, click.Group):
            yield from (
                (f"fedagent {name} {below}", one) for below, one in command.commands.items()
            )
        else:
            yield f"fedagent {name}", command


def parse(words: Sequence[str]) -> None:
    """Let the program read a line without running anything."""
    command: click.Command | None = app
    context: click.Context | None = None
    left = list(words)
    while isinstance(command, click.Group):
        context = command.make_context(command.name, left, parent=context)
        _, command, left = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
    assert command is not None
    command.make_context(command.name, left, parent=context)


def here(*words: object, **named: object) -> None:
    """Run a command in this process, with options by their names: True is a flag's."""
    line = [str(word) for word in words]
    for name, value in named.items():
        line += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    app.main(line, prog_name="fedagent", standalone_mode=False)


def last_object(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the one object that a command printed."""
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stderr
    read: dict[str, Any] = json.loads(lines[0])
    return read


def _asked(line: str) -> int:
    nest = _nest()
    assert nest.stdin is not None
    assert nest.stdout is not None
    try:
        nest.stdin.write(f"{line}\n")
        nest.stdin.flush()
        return int(nest.stdout.readline())
    except BaseException:
        nest.kill()  # what hangs there must not answer the next one
        nest.wait()
        _nest.cache_clear()
        raise


@cache
def _nest() -> "subprocess.Popen[str]":
    """Start it once; it ends with this process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.nest"],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
