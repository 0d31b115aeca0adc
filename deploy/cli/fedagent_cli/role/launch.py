"""Turn options into a role's configuration, check it, and become the role.

The process is replaced, so that the command line does not stay in a device's memory.
"""

import copy
import importlib
import json
import math
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from fedagent_cli.errors import UsageError
from fedagent_cli.output import echo
from fedagent_node.process import piped
from fedagent_node.settings import NodeConfig
from fedagent_node.settings import options_of as declared
from fedagent_protocol.errors import hide_password
from fedagent_protocol.option import Declared

MODULES = {
    "agent": "fedagent_agent",
    "edge": "fedagent_edge",
    "coordinator": "fedagent_coordinator",
}
Config = dict[str, object]
SCHEME = "fedagent:"
"""How an invitation begins; it holds a secret."""


def options_of(role: str) -> list[Declared]:
    """Return the options of a role, as its configuration declares them."""
    return declared(_config(role))


def _config(role: str) -> type[NodeConfig]:
    module = importlib.import_module(f"{MODULES[role]}.config")
    found: type[NodeConfig] = getattr(module, f"{role.capitalize()}Config")
    return found


def configuration(role: str, file: Config, given: Mapping[str, object]) -> Config:
    """Return the keys of a settings file, overridden one by one by the options that were given."""
    made: dict[str, Any] = copy.deepcopy(file)
    for one in options_of(role):
        value = given[one.parameter]
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            # A variable that is not set must not be no option at all: `--join "$INVITATION"`.
            raise UsageError(f"{one.name} is empty", "give a value, or leave the option out")
        if value is None or value in ((), []):
            continue
        if isinstance(value, Path):
            value = str(value.expanduser().absolute())
        elif get_origin(one.kind) is tuple and isinstance(value, str):
            value = _numbers(one, value)
        table = made
        for key in one.keys[:-1]:
            if not isinstance(table.get(key), dict):
                table[key] = {}
            table = table[key]
        table[one.keys[-1]] = value
    return made


def _numbers(one: Declared, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != len(get_args(one.kind)) or not all(map(math.isfinite, numbers)):
        raise UsageError(
            f"{one.name}: {text!r} is not an address", f"write e.g. {one.option.example}"
        )
    return numbers


def check(role: str, config: Config) -> None:
    """Check a configuration by the role's own module, as far as it goes without the disk.

    Raises:
        FedagentError: The role refuses it; the line names the key and the hint.
    """
    try:
        _config(role).load(json.dumps(config, allow_nan=False))
    except ValueError as error:
        raise UsageError("a number is not finite", "give finite numbers only") from error


def _without_secrets(value: object) -> object:
    match value:
        case dict():
            return {key: _without_secrets(one) for key, one in value.items()}
        case list() | tuple():
            return [_without_secrets(one) for one in value]
        case str():
            return f"{SCHEME}***" if value.startswith(SCHEME) else hide_password(value)
        case _:
            return value


def become(role: str, config: Config, *, print_config: bool, as_json: bool) -> NoReturn:
    """Check the configuration and replace this process by the role's.

    With `print_config` it is printed instead, and the program ends.
    """
    if as_json:
        config["json_events"] = True
    check(role, config)
    if print_config:
        if role == "coordinator":
            files = importlib.import_module("fedagent_task.recipe.files")  # it loads numpy
            files.open_recipe(Path(str(config["recipe"])), config.get("sets", ()))
        echo(json.dumps(_without_secrets(config), indent=None if as_json else 2))
        raise SystemExit(0)
    # Until the role takes Ctrl-C it has no clean end: it waits for `Shell.run`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    settings = piped(config)
    os.set_inheritable(settings, True)
    command = [sys.executable, "-m", MODULES[role], "--config", f"/dev/fd/{settings}"]
    os.execv(sys.executable, command)  # noqa: S606 - a fixed program, no shell
