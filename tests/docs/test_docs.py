"""The documents keep up: commands, options, links, tests, exit codes; every line is read."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import fedagent
import fedagent_agent.__main__
import fedagent_coordinator.__main__
import fedagent_edge.__main__
from fedagent_cli import errors
from fedagent_protocol import VERSION
from tests.typed import every_command, parse

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*.md"))
}
CLI = PAGES["docs/cli.md"] + PAGES["docs/settings.md"]
COMMANDS = dict(every_command())


def options_of(command: click.Command) -> set[str]:
    given = [one.opts + one.secondary_opts for one in command.get_params(click.Context(command))]
    return {name for names in given for name in names if name.startswith("--")}


def typed_lines() -> Iterator[tuple[str, str]]:
    """Yield page and line of every call of `fedagent` that a block of shell has."""
    for page, text in PAGES.items():
        for block in re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if found := re.search(r"(?:^|/|sudo )fedagent ([a-z].*)", line.strip()):
                    yield page, re.split(r" [>&|]", found[1])[0]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_option_is_documented(path: str) -> None:
    command = COMMANDS[path]
    assert re.search(rf"`{re.escape(path)}\b", CLI), f"docs/cli.md does not name `{path}`"
    assert not {one for one in options_of(command) if not re.search(rf"{one}\b(?!-)", CLI)}
    assert "Examples" in (command.epilog or "")
    assert command.help


def test_every_documented_option_exists() -> None:
    known = set().union(*map(options_of, COMMANDS.values())) | {"--version"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", CLI)) <= known


@pytest.mark.parametrize(("page", "line"), list(typed_lines()))
def test_the_program_reads_every_line(page: str, line: str) -> None:
    parse(shlex.split(line, comments=True))


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    text = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", text):
        assert "://" in target or ((ROOT / page).parent / target).exists(), target
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        assert re.search(rf"def {name}\b" if name else "", (ROOT / path).read_text("utf-8")), name


def test_the_version_that_peers_are_told_is_the_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == VERSION


def test_every_exit_code_is_documented() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", PAGES["docs/exit-codes.md"], re.MULTILINE)
    listed = {int(number) for row in rows for number in row.split(",")}
    own = {kind.exit_code for kind in errors.CliError.__subclasses__()}
    own |= {*errors.CODES.values(), *(c for c in vars(errors).values() if isinstance(c, int))}
    for role in (fedagent_agent.__main__, fedagent_edge.__main__, fedagent_coordinator.__main__):
        own |= {code for _, code in role.EXIT_CODES}
    assert own <= listed


def test_the_page_on_python_names_what_there_is() -> None:
    page = PAGES["docs/python.md"]
    assert set(re.findall(r"fedagent\.(\w+)", page)) - {"toml"} <= set(fedagent.__all__)
    rows = re.findall(
        r"^\| (.*?) \|", page.partition("| argument | |")[2].partition("\n\n")[0], re.MULTILINE
    )
    listed = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert listed == set(fedagent.run_local.__annotations__) - {"task", "return"}
