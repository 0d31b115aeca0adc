"""`fedagent report`: the live page with its data inside, one HTML file that asks nobody."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import click
import msgspec

from fedagent_cli import options
from fedagent_cli.output import echo, emit, number_text, writing
from fedagent_cli.read.runs import NOT_HELD_OUT, NOT_REPORTED
from fedagent_coordinator.books.evaluations import PEERS
from fedagent_protocol.errors import credits_text
from fedagent_task.scoring.measures import HELD_OUT

from .run_report import RunReport, read_run_report

MODULES = ("words", "draw", "map", "timeline", "views", "card", "page")
"""The page's modules, each after those that it imports."""
IMPORT = re.compile(r'^import (\{.*\}) from "./(\w+).js";', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
MORE = (
    '<section id="view-more" class="view" hidden></section><section id="words" class="view words">'
)
DATA = '<script type="application/json" id="report">'
MANY = 400
"""Points of one curve at most; longer ones are thinned evenly."""
SHOWN = 40
"""Clients in one chart at most."""
COLOURS = 8
"""Of static/page.css."""
LATENCY = ("download", "computation", "upload", "rest of the round at its edge")
Chart = dict[str, object]


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
    first = f'<p class="hint">{escape(summary.conclusion)}.</p>' if summary.conclusion else ""
    parts = (_reached(run), _evaluated(run), _facts(run))
    words = "".join(f'<section class="panel">{part}</section>' for part in parts if part)
    words = f"{first}{_unmeasured(run)}{words}"
    data = msgspec.json.encode({"field": run.picture, "charts": curves(run)}).decode()
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
            f'{MORE}<h2 class="part">In words and tables</h2>{words}</section></main>',
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


def _unmeasured(run: RunReport) -> str:
    if any(one.where == HELD_OUT for one in run.summary.measures):
        return ""
    why = NOT_HELD_OUT if run.summary.measures else NOT_REPORTED
    return f'<p class="hint">Model quality: {escape(why)}.</p>'


def _reached(run: RunReport) -> str:
    reached = run.reached()
    if not reached:
        return ""
    word = run.metric_line[0]
    begun = run.rounds[0].opened_ms if run.rounds else 0
    rows = [
        (f"{target:.4g}", row.round, f"{((row.closed_ms or row.opened_ms) - begun) / 1000:.1f}")
        if row is not None
        else (f"{target:.4g}", "-", "-")
        for target, row in reached
    ]
    return f"<h2>Time to {word}</h2>" + _table((word, "rounds", "seconds"), rows)


def _evaluated(run: RunReport) -> str:
    if not run.evaluations:
        return ""
    means = run.mean_opinions()
    rows = []
    for kind, own in run.by_kind().items():
        known = [means[one.id] for one in own if one.id in means]
        chosen = sum(one.ordered for one in own) / len(own)
        opinion = _number(sum(known) / len(known) if known else None)
        rows.append((kind or "all clients", len(own), f"{chosen:.1f}", opinion))
    asked, answered = (sum(getattr(r, n) for r in run.evaluations) for n in ("asked", "answered"))
    missing: Counter[str] = Counter()
    for row in run.evaluations:
        missing.update(row.reasons)
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(missing.items()))
    epsilon = max(row.epsilon for row in run.evaluations)
    text = (
        f"{len(run.evaluations)} models evaluated; {answered} times an agent volunteered. "
        "What agents think of the models never left them."
        if any(row.mode == PEERS for row in run.evaluations)
        else f"{len(run.evaluations)} models evaluated: {answered} opinions of {asked} asked for."
    )
    text += f" Missing: {why}." if why else ""
    text += f" Noise: epsilon {epsilon:g} for each opinion." if epsilon else ""
    head = ("clients", "number", "times selected, mean", "mean opinion")
    return f"<h2>Selected clients</h2><p>{escape(text)}</p>" + _table(head, rows)


def _number(value: float | None) -> str:
    return "-" if value is None else number_text(value)


def _facts(run: RunReport) -> str:
    def budget(micro: int | None) -> str:
        return "none" if micro is None else f"{credits_text(micro)} credits"

    summary, (label, good) = run.summary, run.metric_line
    facts = {
        label: good,
        "credits spent": credits_text(summary.spent_micro),
        "recipe": summary.recipe,
        "policy": summary.policy or "?",
        "seed": str(summary.seed),
        "budget per edge and round": budget(summary.budget_per_edge_micro),
        "budget of the run": budget(summary.budget_total_micro),
        **run.facts,
    }
    rows = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in facts.items())
    return f'<h2>The run</h2><table class="facts">{rows}</table>'


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="table">{table}</div>'


def curves(run: RunReport) -> list[Chart]:
    """Return the charts that only a report has, as static/views.js draws them."""
    found, kinds = [], list(run.by_kind())
    opinions: dict[str, list[tuple[int, float]]] = {}
    for row in run.evaluations:
        for agent, score in row.scores.items():
            opinions.setdefault(agent, []).append((row.round, score))
    if opinions:
        text = "What each client thinks of each global model"
        series = [
            (one.name, kinds.index(run.kinds.get(one.name, "")) % COLOURS, opinions[one.id])
            for one in run.picture.devices
            if one.id in opinions
        ]
        several = len(kinds) > 1
        text += "; coloured by what they hold." if several else "."
        keys = [kind or "others" for kind in kinds[:COLOURS]] if several else []
        found.append(_chart("Opinions", text, series[:SHOWN], keys))
    if steps := [(row.round, float(row.iterations)) for row in run.rounds if row.iterations]:
        found.append(_chart("Local iterations", "In each round.", [("iterations", 0, steps)], []))
    if run.latency_s and any(row.iterations or row.rented for row in run.rounds):
        parts = [
            (name, at, [(round_, each[at]) for round_, each in run.latency_s.items()])
            for at, name in enumerate(LATENCY)
        ]
        text = "Seconds that the slowest device of each round took."
        found.append(_chart("Latency of the slowest device", text, parts, LATENCY))
    return found


def _chart(
    title: str,
    text: str,
    series: Sequence[tuple[str, int, Sequence[tuple[int, float]]]],
    keys: Sequence[str],
) -> Chart:
    return {
        "title": title,
        "text": text,
        "keys": keys,
        "series": [
            {"name": name, "colour": colour, "points": points[:: 1 + len(points) // MANY]}
            for name, colour, points in series
        ],
    }
