"""`fedagent doctor`: what works on this machine, and what mends the rest."""

import typer

from . import checks, options, places
from .checks import Finding, Level
from .errors import FAILED, OK, WARNED
from .output import emit, say

MARKS = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL"}


def mount(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(
        "doctor",
        epilog=options.examples(
            "fedagent doctor", "fedagent doctor --json", "FEDAGENT_HOME=/mnt/ssd fedagent doctor"
        ),
    )(doctor)


def doctor(*, as_json: options.AsJson = False) -> None:
    """Check this machine, one line per check with the mend.

    Exit code 0: all is well; 44: it works with the warnings named; 45: something is
    broken.
    """
    findings = []
    for check in checks.all_checks(places.home()):
        finding = check()
        findings.append(finding)
        if not as_json:
            say(line(finding))
    code = exit_code(findings)
    if as_json:
        emit(
            {
                "ok": code == OK,
                "exit_code": code,
                "checks": [
                    {"check": f.check, "level": f.level, "text": f.text, "mend": f.mend}
                    for f in findings
                ],
            }
        )
    raise typer.Exit(code)


def line(finding: Finding) -> str:
    """Return a finding as one line."""
    mend = f"  ->  {finding.mend}" if finding.mend else ""
    return f"{MARKS[finding.level]}  {finding.check:<10}  {finding.text}{mend}"


def exit_code(findings: list[Finding]) -> int:
    """Return the exit code for what was found."""
    levels = {finding.level for finding in findings}
    return FAILED if Level.FAIL in levels else WARNED if Level.WARN in levels else OK
