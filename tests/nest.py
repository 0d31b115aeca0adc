"""A process that has imported the command line, and forks one for each call: see `typed`.

What a command imports is there already, and none of it is taken down at the end, which took longer
than most commands; `test_status_and_help_load_nothing_heavy` starts processes of its own.
"""

import gc
import json
import os
import sys
import traceback
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


def ended() -> int:
    """Run the command; return its exit code."""
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python has it at the end of a process
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def serve() -> None:
    """Fork for each line on stdin, and say the exit code when that process has ended."""
    for command in COMMANDS.values():
        command.load()
    for line in iter(sys.stdin.readline, ""):
        gc.freeze()
        child = os.fork()
        if child == 0:
            become(json.loads(line))
            os._exit(ended())
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
