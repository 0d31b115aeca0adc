"""Turn options into a role's configuration, check it, and become the role.

The process is replaced, so that the command line does not stay in a device's memory.
"""

import importlib
import json
import math
import os
import signal
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from fedagent_cli.errors import UsageError
from fedagent_cli.output import echo, emit
from fedagent_node.errors import LinkError
from fedagent_node.process import in_two
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
_PIPE = 60_000
"""Bytes that fit into a pipe whose other end is not read yet."""


def read_config(path: Path | None) -> Config:
    """Return the keys of a TOML or JSON configuration file; none without a file."""
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        read = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name another file") from error
    except ValueError as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f"{path} is not {kind}: {error}", "fix the file") from error
    if not isinstance(read, dict):
        raise UsageError(f"{path} contains no `key = value` table", "write `key = value` lines")
    return read


def tls(ca: Path | None, cert: Path | None, key: Path | None) -> Config | None:
    """Return the certificate files as a configuration value: all three, or none."""
    files = {"ca": ca, "cert": cert, "key": key}
    given = {name: path for name, path in files.items() if path is not None}
    if not given:
        return None
    if len(given) < len(files):
        lacking = ", ".join(f"--tls-{name}" for name in files if name not in given)
        raise UsageError("TLS needs all three certificate files", f"add {lacking}")
    for name, path in given.items():
        if not path.is_file():
            raise UsageError(f"--tls-{name}: no file {path}", "check the path")
    return {name: str(path.resolve()) for name, path in given.items()}


def merge(file: Config, options: Mapping[str, object]) -> Config:
    """Return the file's keys, overridden by the options that were given; tables key by key."""
    merged = dict(file)
    for key, given in options.items():
        value = given
        if isinstance(given, Mapping):
            table = merged.get(key)
            value = merge(table if isinstance(table, dict) else {}, given) or None
        if value is None or value in ((), []):
            continue
        merged[key] = str(value) if isinstance(value, Path) else value
    return merged


def options_of(role: str) -> list[Declared]:
    """Return the options of a role, as its configuration declares them."""
    return declared(_config(role))


def _config(role: str) -> type[NodeConfig]:
    module = importlib.import_module(f"{MODULES[role]}.config")
    found: type[NodeConfig] = getattr(module, f"{role.capitalize()}Config")
    return found


def configuration(role: str, given: Mapping[str, object]) -> Config:
    """Return the values of a role's options as tables of keys."""
    made: dict[str, Any] = {}
    for one in options_of(role):
        table = made
        for key in one.keys[:-1]:
            table = table.setdefault(key, {})
        value = given[one.parameter]
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            # A variable that is not set must not be no option at all: `--join "$INVITATION"`.
            raise UsageError(f"{one.name} is empty", "give a value, or leave the option out")
        if get_origin(one.kind) is tuple and isinstance(value, str):
            value = _numbers(one, value)
        table[one.keys[-1]] = value
    made["tls"] = tls(**made["tls"])
    if made["data_dir"] is not None:
        made["data_dir"] = made["data_dir"].expanduser().resolve()
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
        UsageError: The role refuses it; the line names the key and the hint.
    """
    _check_finite(config, {one.keys: one.name for one in options_of(role)})
    try:
        _config(role).load(json.dumps(config))
    except LinkError as error:
        raise UsageError(*in_two(error)) from error


def _check_finite(
    config: Mapping[str, object], names: Mapping[tuple[str, ...], str], *tables: str
) -> None:
    """Refuse nan and inf, which JSON cannot carry to the role."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            _check_finite(value, names, *tables, key)
        elif isinstance(value, float) and not math.isfinite(value):
            name = names.get((*tables, key), key)
            raise UsageError(f"{name}: {value} must be finite", "give a finite number")


def _without_passwords(config: Config) -> Config:
    return {
        key: _hidden(key, value)
        if isinstance(value, str)
        else [hide_password(str(item)) for item in value]
        if key == "edges" and isinstance(value, list | tuple)
        else value
        for key, value in config.items()
    }


def _hidden(key: str, text: str) -> str:
    if key == "join" and text.startswith(SCHEME):
        return f"{SCHEME}***"
    return hide_password(text)


def _through_a_pipe(text: str) -> str:
    """Return a file's name under which the next program reads text that `ps` must not show."""
    if len(text) > _PIPE:
        raise UsageError("the configuration is over 60 kB", "shorten it")
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    os.set_inheritable(reader, True)
    return f"/dev/fd/{reader}"


def become(role: str, config: Config, *, print_config: bool, as_json: bool) -> NoReturn:
    """Check the configuration and replace this process by the role's.

    With `print_config` it is printed instead, and the program ends.
    """
    if as_json:
        config["json_events"] = True
    check(role, config)
    if print_config:
        if role == "coordinator":
            from fedagent_cli.role.rehearsal import check_recipe  # noqa: PLC0415 - numpy, for this check only

            check_recipe(config)
        shown = _without_passwords(config)
        if as_json:
            emit(shown)
        else:
            echo(json.dumps(shown, indent=2))
        raise SystemExit(0)
    # Until the role takes Ctrl-C it has no clean end: it waits for `Shell.run`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.stdout.flush()
    text = json.dumps(config)
    if _without_passwords(config) != config:
        text = _through_a_pipe(text)
    command = [sys.executable, "-m", MODULES[role], "--config", text]
    os.execv(sys.executable, command)  # noqa: S606 - a fixed program, no shell
