"""A role's configuration from a file and from options."""

from pathlib import Path
from typing import Any

import click
import pytest

from fedagent_cli.main import COMMANDS
from fedagent_cli.role import launch
from fedagent_node.settings import SettingError, read_settings


def test_options_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text('name = "hall"\nport = 1\n[tls]\nca = "a"\n')
    merged = launch.merge(read_settings(str(file)), {"port": 2, "site": None, "edges": []})
    assert merged == {"name": "hall", "port": 2, "tls": {"ca": "a"}}
    table: launch.Config = {"price": {"base": 1.0, "per_compute": 2.0}}
    asked = {"price": {"base": 3.0, "per_compute": None}}
    assert launch.merge(table, asked) == {"price": {"base": 3.0, "per_compute": 2.0}}
    assert launch.merge({}, {"price": {"base": None}}) == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.toml", b"= 3"), ("b.toml", b"\xff\xfe=\0"), ("a.json", b"{"), ("b.json", b"[]")],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingError, match=rf"^[^\n]*{name}[^\n]*$"):
        read_settings(str(tmp_path / name))
    with pytest.raises(SettingError, match="cannot read"):
        read_settings(str(tmp_path))


@pytest.mark.parametrize("role", launch.MODULES)
def test_every_option_that_a_configuration_declares_comes_to_its_key(role: str) -> None:
    command = COMMANDS[role].load()
    options = launch.options_of(role)
    shown = {name for one in command.get_params(click.Context(command)) for name in one.opts}
    more = {"--config", "--print-config", "--json", "--help", "--help-all"}
    assert shown == {one.name for one in options} | more
    nothing = {one.parameter: None for one in options}
    for one in options:
        value = Path("/x") if one.option.path else "1,2" if one.keys == ("position",) else 3
        found: Any = launch.configuration(role, {**nothing, one.parameter: value})
        for key in one.keys:
            found = found[key]
        assert found == ([1, 2] if value == "1,2" else value)


def test_secrets_are_not_shown() -> None:
    said = launch._without_secrets(
        {"join": "fedagent:abc", "edges": ["mqtt://a:word@h"], "port": 1}
    )
    assert said == {"join": "fedagent:***", "edges": ["mqtt://a:***@h"], "port": 1}
