"""A role's configuration from a file and from options."""

from pathlib import Path
from typing import Any

import click
import pytest

from fedagent_cli.errors import UsageError
from fedagent_cli.main import COMMANDS
from fedagent_cli.role import launch


def test_options_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text('name = "hall"\nport = 1\n[tls]\nca = "a"\n')
    merged = launch.merge(launch.read_config(file), {"port": 2, "site": None, "edges": []})
    assert merged == {"name": "hall", "port": 2, "tls": {"ca": "a"}}
    table: launch.Config = {"price": {"base": 1.0, "per_compute": 2.0}}
    asked = {"price": {"base": 3.0, "per_compute": None}}
    assert launch.merge({}, asked) == {"price": {"base": 3.0}}
    assert launch.merge(table, asked) == {"price": {"base": 3.0, "per_compute": 2.0}}
    assert launch.merge(table, {"price": {"base": None}}) == table
    assert launch.merge({}, {"price": {"base": None}}) == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.toml", b"= 3"),
        ("utf-16.toml", b"\xff\xfe=\0"),
        ("a.json", b"{"),
        ("b.json", b"[]"),
        ("utf-16.json", b"\xff\xfe{\0"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        launch.read_config(file)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        launch.read_config(tmp_path)


def test_tls_needs_all_three_files(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    assert launch.tls(None, None, None) is None
    with pytest.raises(UsageError, match="--tls-cert, --tls-key"):
        launch.tls(ca, None, None)
    with pytest.raises(UsageError, match="no file"):
        launch.tls(ca, ca, tmp_path / "absent")
    assert launch.tls(ca, ca, ca) == {"ca": str(ca), "cert": str(ca), "key": str(ca)}


@pytest.mark.parametrize("role", launch.MODULES)
def test_every_option_that_a_configuration_declares_comes_to_its_key(role: str) -> None:
    command = COMMANDS[role].load()
    options = launch.options_of(role)
    shown = {name for one in command.get_params(click.Context(command)) for name in one.opts}
    assert shown == {one.name for one in options} | {
        "--config",
        "--print-config",
        "--json",
        "--help",
        "--help-all",
    }
    nothing = {one.parameter: None for one in options}
    for one in options:
        if one.keys[0] != "tls":
            value = Path("/x") if one.option.path else "1,2" if one.keys == ("position",) else 3
            found: Any = launch.configuration(role, {**nothing, one.parameter: value})
            for key in one.keys:
                found = found[key]
            assert found == ([1, 2] if value == "1,2" else value)
    with pytest.raises(UsageError, match="TLS needs all three"):
        launch.configuration(role, {**nothing, "tls_ca": Path("/x")})
