"""The documents keep up: every command and option, every link, every exit code."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import fedagent_agent.__main__
import fedagent_coordinator.__main__
import fedagent_edge.__main__
from fedagent_cli import errors
from fedagent_protocol import VERSION
from tests.typed import every_command

ROOT = Path(__file__).parents[2]
CLI = "".join((ROOT / "docs" / page).read_text("utf-8") for page in ("cli.md", "settings.md"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SHELL = {"--help", "--version"}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command with the long names of its options."""
    for path, command in every_command():
        yield (
            path,
            [
                option
                for parameter in command.get_params(click.Context(command))
                for option in (*parameter.opts, *parameter.secondary_opts)
                if option.startswith("--") and option not in SHELL
            ],
        )


@pytest.mark.parametrize(("path", "options"), [pytest.param(*c, id=c[0]) for c in commands()])
def test_every_command_and_option_is_documented(path: str, options: list[str]) -> None:
    assert re.search(rf"`{re.escape(path)}\b", CLI), f"docs/cli.md does not name `{path}`"
    missing = [option for option in options if not re.search(rf"{option}\b(?!-)", CLI)]
    assert not missing, f"docs/cli.md does not name {missing} of `{path}`"


def test_every_documented_option_exists() -> None:
    known = {option for _, options in commands() for option in options} | SHELL
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", CLI))
    assert named <= known


def test_the_reading_commands_take_what_the_page_says() -> None:
    part = CLI.partition("## Read a run")[2].partition("## ")[0]
    intro, _, table = part.partition("| command |")
    whole = {f"fedagent {name}" for name in re.findall(r"`(ledger \w+|runs)`", intro)}
    listed = re.findall(r"^\| `(fedagent [a-z ]+?)(?: \[[A-Z_]+\])?` \|", table, re.MULTILINE)
    taken = dict(commands())
    assert whole < set(listed)
    for path in listed:
        assert "--json" in taken[path]
        assert ("--run" in taken[path]) == (path not in whole), path
        assert "--data-dir" in taken[path], path


def test_the_version_that_peers_are_told_is_the_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION


def test_every_command_shows_an_example() -> None:
    for path, command in every_command():
        assert "Examples" in (command.epilog or ""), path
        assert command.help, path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text("utf-8")):
        assert (ROOT / path).exists(), path
        assert re.search(rf"def {name}\b", (ROOT / path).read_text("utf-8")) or not name, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "#")):
            path = page.parent / target.partition("#")[0]
            assert path.exists(), f"{page.name} links to {target}"


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    listed = {int(number) for row in rows for number in row.split(",")}
    own = {kind.exit_code for kind in errors.CliError.__subclasses__()}
    for role in (fedagent_agent.__main__, fedagent_edge.__main__, fedagent_coordinator.__main__):
        for name, value in vars(role).items():
            if name == "EXIT_CODES":
                own |= {code for _, code in value}
            elif name.startswith("EXIT_"):
                own.add(value)
    assert (
        own | {errors.OK, errors.WARNED, errors.FAILED, errors.INTERRUPTED, errors.UNREAD} <= listed
    )
