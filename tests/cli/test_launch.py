"""What is added to click, all commands, and a role's configuration from a file and options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fedagent_cli.command_line import MOST, Number
from fedagent_cli.main import COMMANDS, app
from fedagent_cli.role import launch
from fedagent_node.settings import SettingError, read_settings
from tests.typed import every_command


def typed(role: str, **options: object) -> dict[str, object]:
    return {**{one.parameter: None for one in launch.options_of(role)}, **options}


def test_options_win_over_the_file_key_by_key() -> None:
    file: launch.Config = {"name": "hall", "port": 1, "tls": {"ca": "/a"}}
    merged = launch.configuration("edge", file, typed("edge", port=2, tls_key=Path("b")))
    assert merged == {
        "name": "hall",
        "port": 2,
        "tls": {"ca": "/a", "key": str(Path("b").absolute())},
    }
    assert file == {"name": "hall", "port": 1, "tls": {"ca": "/a"}}
    asked = typed("agent", price_base=3.0, edges=())
    price = {"price": {"base": 1.0, "per_compute": 2.0}}
    merged = launch.configuration("agent", {**price}, asked)
    assert merged == {"price": {"base": 3.0, "per_compute": 2.0}}


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
    for one in options:
        value = Path("/x") if one.option.path else "1,2" if one.keys == ("position",) else 3
        found: Any = launch.configuration(role, {}, typed(role, **{one.parameter: value}))
        for key in one.keys:
            found = found[key]
        assert found == ([1, 2] if value == "1,2" else "/x" if one.option.path else value)


def test_secrets_are_not_shown() -> None:
    said = launch._without_secrets(
        {"join": "fedagent:abc", "edges": ["mqtt://a:word@h"], "port": 1}
    )
    assert said == {"join": "fedagent:***", "edges": ["mqtt://a:***@h"], "port": 1}


ALL = dict(every_command())


def numbers() -> Iterator[tuple[str, Number]]:
    for path, command in ALL.items():
        for one in command.get_params(click.Context(command)):
            if isinstance(one.type, Number):
                yield f"{path} {one.opts[0]}", one.type


NUMBERS = dict(numbers())


@given(st.sampled_from(sorted(NUMBERS)), st.floats() | st.integers() | st.text(max_size=5))
def test_a_number_is_finite_and_one_that_the_books_can_hold(name: str, typed: object) -> None:
    kind = NUMBERS[name]
    try:
        found = kind.convert(str(typed), None, None)
    except click.UsageError as error:
        assert str(typed) in error.message or repr(str(typed)) in error.message
    else:
        assert -MOST <= found <= MOST
        assert kind.convert(str(found), None, None) == found


@pytest.mark.parametrize("typed", ["9" * 23, "nan", "inf", "1e308", "-1", "4", "x", ""])
def test_a_number_out_of_bounds_is_refused(typed: str) -> None:
    with pytest.raises(click.UsageError):
        Number(float, min=0, max=3).convert(typed, None, None)


def test_there_are_at_most_32_commands_and_each_has_json() -> None:
    assert len(ALL) <= 32
    for path, command in ALL.items():
        names = {name for one in command.get_params(click.Context(command)) for name in one.opts}
        assert "--json" in names, path


@pytest.mark.parametrize("role", ["agent", "edge", "coordinator"])
def test_the_help_of_a_role_shows_ten_options_and_all_when_asked(role: str) -> None:
    few = CliRunner().invoke(app, [role, "--help"]).output
    more = CliRunner().invoke(app, [role, "start", "--help-all"]).output
    few, more = (text.partition("Options:")[2] for text in (few, more))
    count = [len(re.findall(r"^  --", text, re.MULTILINE)) for text in (few, more)]
    assert count[0] <= 10
    assert count[1] > 25
    assert "--log-level" not in few
    assert "--log-level" in more
