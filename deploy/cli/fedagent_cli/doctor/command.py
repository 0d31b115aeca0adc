"""`fedagent doctor`: what works on this machine, and how to fix the rest."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click
import msgspec
from click.exceptions import Exit

from fedagent_agent.availability import LimitsSettings
from fedagent_cli import options, places
from fedagent_cli.errors import FAILED, OK, WARNED, UsageError
from fedagent_cli.output import echo, emit
from fedagent_node.settings import read_settings

from . import network
from .checks import Finding, Level, of_machine
from .lies import lies
from .membership import membership

MARKS = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL"}
CODES = {Level.OK: OK, Level.WARN: WARNED, Level.FAIL: FAILED}


@click.command(
    epilog=options.examples(
        "fedagent doctor", "fedagent doctor --json", "FEDAGENT_HOME=/mnt/ssd fedagent doctor"
    )
)
@options.config_file
@click.option(
    "--data-dir",
    "folders",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Data directory of another role to check. Repeatable.",
)
@options.as_json
def doctor(*, config: Path | None, folders: tuple[Path, ...], as_json: bool) -> None:
    """Check this machine; each check prints one line, with a hint if something is wrong.

    With --config, that agent's table `limits` decides whether it would train now, and its
    `data_dir` is checked too.

    Exit code 0: all is well; 44: it works with the warnings named; 45: something is
    broken.
    """
    file = {} if config is None else read_settings(str(config))
    home = places.home()
    if isinstance(own := file.get("data_dir"), str):
        folders = (*folders, Path(own).expanduser())
    try:
        limits = msgspec.convert(file.get("limits", {}), LimitsSettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"limits: {error}", "see docs/agent.md for the keys") from error
    findings = {}
    for check, finding in _looks(home, folders, limits):
        findings[check] = finding
        if not as_json:
            echo(line(check, finding))
    levels = {finding.level for finding in findings.values()}
    code = CODES[max(levels, key=list(Level).index)]
    if as_json:
        checks = [{"check": check, **asdict(found)} for check, found in findings.items()]
        emit({"ok": code == OK, "exit_code": code, "checks": checks})
    raise Exit(code)


def _looks(
    home: Path, folders: Sequence[Path], limits: LimitsSettings
) -> Iterator[tuple[str, Finding]]:
    yield from of_machine(home, limits)
    yield "mdns", network.mdns()
    yield "adverts", asyncio.run(network.adverts())
    yield "site", membership(home, *folders)
    if (found := lies(home, *folders)) is not None:
        yield "lies", found


def line(check: str, finding: Finding) -> str:
    """Return a finding as one line."""
    hint = f"  ->  {finding.hint}" if finding.hint else ""
    return f"{MARKS[finding.level]}  {check:<12}  {finding.text}{hint}"
