"""A process that has imported the command line, and forks one for each call: see `typed`.

Whatever Python does at the end of a process it does in these as well. What a command imports is
there already; `test_the_help_does_not_load_what_it_does_not_need` starts a process of its own.
"""

import json
import os
import sys
from typing import TypedDict

import numpy as np  # noqa: F401 - half of what a command takes to start

from fedagent_cli.__main__ import main
from fedagent_cli.main import COMMANDS


class Call(TypedDict):
    """One call: what is typed, where, and the files that take what it says."""

    arguments: list[str]
    cwd: str
    env: dict[str, str]
    out: str
    err: str


def become(call: Call) -> None:
    """Make this process what a shell would have started."""
    os.chdir(call["cwd"])
    os.environ.clear()
    os.environ.update(call["env"])
    sys.argv = ["fedagent", *call["arguments"]]
    for number, path in enumerate((os.devnull, call["out"], call["err"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)


def serve() -> None:
    """Fork for each line on stdin, and say the exit code when that process has ended."""
    for command in COMMANDS.values():
        command.load()
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            become(json.loads(line))
            main()
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
