"""`fedagent doctor`: what works on this machine, and how to fix the rest."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
import msgspec
from click.exceptions import Exit

from fedagent_agent.availability import LimitsSettings
from fedagent_agent.core.opinions import PrivacySettings
from fedagent_cli import options, places
from fedagent_cli.doctor.checks import Finding, all_checks
from fedagent_cli.doctor.membership import membership
from fedagent_cli.errors import FAILED, OK, WARNED, UsageError
from fedagent_cli.output import echo, emit
from fedagent_cli.role import launch

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@click.command(
    epilog=options.examples(
        "fedagent doctor", "fedagent doctor --json", "FEDAGENT_HOME=/mnt/ssd fedagent doctor"
    )
)
@options.config_file
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Data directory of another role to check. Repeatable.",
)
@options.as_json
def doctor(*, config: Path | None, data_dir: tuple[Path, ...], as_json: bool) -> None:
    """Check this machine; each check prints one line, with a hint if something is wrong.

    With --config, that agent's table `limits` decides whether it would train now, its table
    `privacy` which opinions it would send, and its `data_dir` is checked too.

    Exit code 0: all is well; 44: it works with the warnings named; 45: something is
    broken.
    """
    findings = {}
    looks = all_checks(places.home(), *_tables(config))
    looks["site"] = partial(membership, places.home(), *_folders(config, data_dir))
    for check, look in looks.items():
        findings[check] = look()
        if not as_json:
            echo(line(check, findings[check]))
    code = exit_code(findings.values())
    if as_json:
        checks = [{"check": check, **asdict(found)} for check, found in findings.items()]
        emit({"ok": code == OK, "exit_code": code, "checks": checks})
    raise Exit(code)


def _folders(config: Path | None, named: Sequence[Path]) -> list[Path]:
    """Return the data directories that were named, one by one or in a configuration."""
    configured = launch.read_config(config).get("data_dir")
    folders = [*named, *([Path(configured)] if isinstance(configured, str) else [])]
    return [folder.expanduser() for folder in folders]


def _tables(config: Path | None) -> tuple[LimitsSettings, PrivacySettings]:
    """Return two tables of an agent's configuration; the defaults without one."""
    file = launch.read_config(config)
    name = "limits"
    try:
        limits = msgspec.convert(file.get(name, {}), LimitsSettings)
        name = "privacy"
        return limits, msgspec.convert(file.get(name, {}), PrivacySettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}", "see docs/agent.md for the keys") from error


def line(check: str, finding: Finding) -> str:
    """Return a finding as one line."""
    hint = f"  ->  {finding.hint}" if finding.hint else ""
    return f"{MARKS[finding.level]}  {check:<12}  {finding.text}{hint}"


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code for what was found."""
    levels = {str(finding.level) for finding in findings}
    return FAILED if "fail" in levels else WARNED if "warn" in levels else OK
