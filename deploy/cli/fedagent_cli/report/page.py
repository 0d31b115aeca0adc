"""`fedagent report`: the live page with its data inside, one HTML file that asks nobody."""

import json
import re
from html import escape
from importlib.resources import files
from pathlib import Path

import click
import msgspec

from fedagent_cli import options
from fedagent_cli.output import echo, emit, writing
from fedagent_cli.read.runs import NOT_HELD_OUT, NOT_REPORTED
from fedagent_protocol.errors import credits_text
from fedagent_task.scoring.measures import HELD_OUT

from .run_report import RunReport, read_run_report

MODULES = ("words", "draw", "map", "timeline", "views", "card", "page")
"""The page's modules, each after those that it imports."""
IMPORT = re.compile(r'^import (\{.*\}) from "./(\w+).js";', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
WORDS = '<section id="words" class="view words">'
DATA = '<script type="application/json" id="report">'


@click.command(
    epilog=options.examples(
        "fedagent report",
        "fedagent report --data-dir /srv/fedagent/coordinator --out /var/www/run-7",
    )
)
@options.coordinator_data
@options.run_id
@click.option(
    "--out",
    type=options.PATH,
    show_default="here",
    help="Folder for the report, made if it is not there.",
)
@options.as_json
def report(*, data_dir: Path | None, run: str | None, out: Path | None, as_json: bool) -> None:
    """Write a run as report.html (one file, no outside requests) and report.json.

    It may be read while the coordinator runs.
    """
    found = read_run_report(data_dir, run)
    place = (out or Path()).expanduser().resolve()
    with writing(place, what="the report to ", hint="name another folder with --out"):
        html = write_report(found, place)
    if as_json:
        emit(
            {
                "report": str(html),
                "run": found.summary.run,
                "rounds_done": len(found.rounds),
                "accuracy": found.summary.accuracy,
                "metrics": found.summary.metrics,
                "ledger_balanced": found.ledger_balanced,
            }
        )
        return
    echo(f"{html}: {len(found.rounds)} rounds of {found.summary.recipe}")


def write_report(run: RunReport, folder: Path) -> Path:
    """Write report.html and report.json into a folder, made if need be; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    html = folder / "report.html"
    html.write_text(render(run), encoding="utf-8")
    record = json.dumps(run.record(), indent=1)
    (folder / "report.json").write_text(record + "\n", encoding="utf-8")
    return html


def render(run: RunReport) -> str:
    """Return the whole page."""
    summary = run.summary
    title = f"{summary.recipe} with policy {summary.policy}"
    about = f"{title}. Run {summary.run}, {run.state} after {run.progress} rounds."
    hints = [f"{summary.conclusion}."] if summary.conclusion else []
    if not any(one.where == HELD_OUT for one in summary.measures):
        hints.append(f"Model quality: {NOT_HELD_OUT if summary.measures else NOT_REPORTED}.")
    words = "".join(f'<p class="hint">{escape(hint)}</p>' for hint in hints)
    words += f'<section class="panel">{_facts(run)}</section>'
    data = msgspec.json.encode({"field": run.picture}).decode()
    data = data.replace("<", "\\u003c")  # names come from devices
    page = _static("index.html")
    for place, text in (
        ("<title>fedagent</title>", f"<title>fedagent: {escape(title)}</title>"),
        ('<link rel="icon" href="icon.svg" type="image/svg+xml">\n', ""),
        ('<link rel="stylesheet" href="page.css">', f"<style>{_static('page.css')}</style>"),
        ('<script type="module" src="page.js"></script>\n', ""),
        ("<body>", '<body class="report">'),
        (">connecting<", f">{escape(about)}<"),
        (
            "</main>",
            f'{WORDS}<h2 class="part">In words and tables</h2>{words}</section></main>',
        ),
        (
            "</body>",
            f"{DATA}{data}</script><script>{_script()}</script></body>",
        ),
    ):
        assert page.count(place) == 1, place
        page = page.replace(place, text)
    return page


def _static(name: str) -> str:
    return (files("fedagent_coordinator.web") / "static" / name).read_text(encoding="utf-8")


def _script() -> str:
    """Return the page's modules as one script: a browser loads no module from a file."""
    parts = []
    for name in MODULES:
        text = IMPORT.sub(r"const \1 = $\2;", _static(f"{name}.js"))
        given = ", ".join(EXPORT.findall(text))
        parts.append(f"const ${name} = (() => {{")
        parts.append(EXPORT.sub(lambda found: found[0].removeprefix("export "), text))
        parts.append(f"return {{ {given} }};\n}})();")
    return "\n".join(parts)


def _facts(run: RunReport) -> str:
    summary, (label, good) = run.summary, run.metric_line
    budgets = {
        "budget per edge and round": summary.budget_per_edge_micro,
        "budget of the run": summary.budget_total_micro,
    }
    facts = {
        label: good,
        "credits spent": credits_text(summary.spent_micro),
        "recipe": summary.recipe,
        "policy": str(summary.policy),
        "seed": str(summary.seed),
        **{
            name: "none" if micro is None else f"{credits_text(micro)} credits"
            for name, micro in budgets.items()
        },
        **run.facts,
    }
    rows = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in facts.items())
    return f'<h2>The run</h2><table class="facts">{rows}</table>'
