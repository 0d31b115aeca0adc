"""What is added to click: commands loaded when called, headings, numbers; and all commands."""

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fedagent_cli.command_line import MOST, Number
from fedagent_cli.main import app
from tests.typed import every_command

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
