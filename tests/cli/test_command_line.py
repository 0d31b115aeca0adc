"""Commands from annotated functions: what is parsed, refused and shown."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner, Result
from msgspec import Struct

from fedagent_cli import command_line
from fedagent_cli.main import app as main_app
from fedagent_protocol.option import Option, declared


class Kind(StrEnum):
    A_KIND = "a-kind"
    OTHER = "other"


app = command_line.CommandGroup(name="app", no_args_is_help=True)
below = command_line.CommandGroup(name="below", help="Below it.")
app.add_group(below, panel="Deeper")
given: dict[str, object] = {}


@app.command(epilog="Examples")
def one_thing(
    where: Annotated[
        Path | None, command_line.Argument(help="A place.", show_default="here")
    ] = None,
    *,
    count: Annotated[int, command_line.Option(min=1, max=9, help="How many.")] = 3,
    share: Annotated[float | None, command_line.Option(min=0, help="How much.")] = None,
    kind: Annotated[Kind | None, command_line.Option("--format", help="Which.")] = None,
    items: Annotated[
        list[str] | None, command_line.Option("--item", metavar="K=V", help="A.")
    ] = None,
    quiet: Annotated[bool, command_line.Option("--quiet", help="B.", panel="Sound")] = False,
    other: Annotated[Kind, command_line.Option(help="Which too.")] = Kind.OTHER,
    loud: Annotated[bool | None, command_line.Option("--loud", help="C.")] = None,
    file: Annotated[
        Path | None, command_line.Option(exists=True, dir_okay=False, help="D.")
    ] = None,
) -> None:
    """Do one thing. And this is more of it."""
    given.update(locals())


class Settings(Struct, frozen=True):
    where: Annotated[str, Option("P.", panel="Where")] = "here"
    names: Annotated[tuple[str, ...], Option("N.", name="--name")] = ()
    count: Annotated[int, Option("C.", at_least=1)] = 3
    loud: Annotated[bool, Option("L.")] = False


@app.command("declared", options=lambda: declared(Settings))
def of_settings(
    *, dry: Annotated[bool, command_line.Option("--dry", help="D.")] = False, **values: object
) -> None:
    """Do what is declared."""
    given.update(values, dry=dry)


@below.command("deep")
def deep(*, name: Annotated[str, command_line.Argument(help="Whose.")]) -> None:
    """Do it below."""
    given.update(name=name)
    raise command_line.Exit(7)


def typed(*arguments: str) -> Result:
    given.clear()
    return CliRunner().invoke(app.group, arguments)


def test_defaults_and_types() -> None:
    assert typed("one-thing").exit_code == 0
    assert given == {
        **dict.fromkeys(("where", "share", "kind", "items", "loud", "file")),
        "count": 3,
        "quiet": False,
        "other": Kind.OTHER,
    }
    line = "one-thing x --count 9 --share 0.5 --format a-kind --item a=1 --item b=2 --quiet --loud"
    assert typed(*line.split()).exit_code == 0
    assert (given["where"], given["count"], given["share"]) == (Path("x"), 9, 0.5)
    assert given["kind"] is Kind.A_KIND
    assert given["items"] == ["a=1", "b=2"]
    assert given["quiet"] is given["loud"] is True
    assert typed("below", "deep", "me").exit_code == 7
    assert given == {"name": "me"}


@pytest.mark.parametrize(
    "line",
    [
        *("one-thing --count 10", "one-thing --share -1", "one-thing --format A_KIND"),
        *("one-thing --file /nowhere", "one-thing --file /", "one-thing --what", "below deep"),
    ],
)
def test_what_does_not_fit_is_refused(line: str) -> None:
    assert typed(*line.split()).exit_code == 2


def test_help_has_headings_whole_sentences_and_defaults() -> None:
    top = typed("--help").output
    assert "one-thing  Do one thing." in top
    assert "Deeper:\n  below" in top
    one = typed("one-thing", "--help").output
    for text in ("Arguments:", "[WHERE]  A place.  [default: (here)]", "Sound:", "--item K=V"):
        assert text in one
    assert "[default: 3;" in one
    assert one.rstrip().endswith("Examples")


def test_the_fields_of_a_struct_are_options_that_are_none_unless_given() -> None:
    assert typed("declared").exit_code == 0
    assert given == {"where": None, "names": (), "count": None, "loud": None, "dry": False}
    line = "declared --where x --name a --name b --count 2 --loud --dry"
    assert typed(*line.split()).exit_code == 0
    wanted = {"where": "x", "names": ("a", "b"), "count": 2, "loud": True, "dry": True}
    assert given == wanted
    assert typed("declared", "--count", "0").exit_code == 2
    shown = typed("declared", "--help").output
    assert shown.index("--count") < shown.index("--dry") < shown.index("Where:")
    assert "[default: (here)]" in shown


def _commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], list[click.Parameter]]]:
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _commands(child, (*path, name))
        return
    yield path, command.get_params(click.Context(command))


COMMANDS = dict(_commands(main_app.group))
NUMBERS = [
    (path, one.opts[0])
    for path, parameters in COMMANDS.items()
    for one in parameters
    if isinstance(one.type, click.types._NumberParamTypeBase)
]


def test_every_command_has_json() -> None:
    given = {path: {name for one in found for name in one.opts} for path, found in COMMANDS.items()}
    assert [path for path, names in given.items() if "--json" not in names] == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_usage_line_brackets_what_may_be_left_out(path: tuple[str, ...]) -> None:
    usage = CliRunner().invoke(main_app.group, [*path, "--help"]).output.partition("\n\n")[0]
    found = [one for one in COMMANDS[path] if isinstance(one, click.Argument)]
    shown = usage.replace("[OPTIONS]", "").replace("...", "").split()[-len(found) :] * bool(found)
    assert [word.startswith("[") for word in shown] == [not one.required for one in found]


def test_there_are_numbers_to_refuse() -> None:
    assert len(NUMBERS) > 40
    assert (("why",), "--round") in NUMBERS


@pytest.mark.parametrize("number", ["9" * 23, "nan", "inf", "1e308"])
@pytest.mark.parametrize(("path", "option"), NUMBERS, ids=str)
def test_no_number_is_too_large_for_the_books(
    path: tuple[str, ...], option: str, number: str
) -> None:
    result = CliRunner().invoke(main_app.group, [*path, f"{option}={number}"])
    assert (result.exit_code, option in result.output) == (2, True)
