"""The report: the live page with its data inside, one HTML file that asks nobody."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import structs

from fedagent_cli.output import credits_text, number_text
from fedagent_cli.read.runs import NOT_HELD_OUT, NOT_REPORTED
from fedagent_coordinator.books.evaluations import PEERS
from fedagent_coordinator.picture.records import Field
from fedagent_coordinator.picture.watcher import Watcher
from fedagent_task.scoring.measures import HELD_OUT

from .curves import curves
from .run_report import RunReport

MODULES = ("words", "draw", "map", "timeline", "views", "card", "page")
"""The page's modules, each after those that it imports."""
IMPORT = re.compile(r'^import (\{.*\}) from "./(\w+).js";', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
MORE = (
    '<section id="view-more" class="view" hidden></section><section id="words" class="view words">'
)
DATA = '<script type="application/json" id="report">'
TILES = {
    "device_score": "score on the devices' samples",
    "train_loss": "training loss, as devices report it",
    "train_error": "training error, as devices report it",
}
"""What a tile says, where that is not a measure's word and samples."""


def write_report(run: RunReport, data_dir: Path, folder: Path, *, name: str = "report") -> Path:
    """Write `NAME.html` and `NAME.json` into a folder and return the page's path.

    Args:
        run: The run, as `read_run_report` read it.
        data_dir: The coordinator's data directory that it was read from.
        folder: Made if it is not there.
        name: Of both files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    html = folder / f"{name}.html"
    html.write_text(render(run, picture(run, data_dir)), encoding="utf-8")
    record = json.dumps(run.record(), indent=1)
    (folder / f"{name}.json").write_text(record + "\n", encoding="utf-8")
    return html


def picture(run: RunReport, data_dir: Path) -> Field:
    """Return what the live page shows of a run, with the report's names."""
    watcher = Watcher(data_dir, run=run.run, whole=True)
    try:
        field = watcher.look()
    finally:
        watcher.close()
    names = {agent.agent: agent.name for agent in run.agents}
    return structs.replace(
        field,
        devices=tuple(
            structs.replace(one, name=names.get(one.id, one.name), address="")
            for one in field.devices
        ),
        edges=tuple(
            structs.replace(one, name=run.edges.get(one.id) or one.name) for one in field.edges
        ),
        running=None,
        alarms=(),
        pending=(),
    )


def render(run: RunReport, field: Field) -> str:
    """Return the whole page."""
    title = f"{run.recipe} with policy {run.policy}"
    about = f"{title}. Run {run.run}, {run.state} after {run.progress} rounds."
    first = f'<p class="hint">{escape(run.conclusion)}.</p>' if run.conclusion else ""
    parts = (_reached(run), _evaluated(run), _undelivered(run), _facts(run))
    words = "".join(f'<section class="panel">{part}</section>' for part in parts if part)
    words = f"{first}{_unmeasured(run)}{words}"
    data = msgspec.json.encode({"field": field, "charts": curves(run)}).decode()
    data = data.replace("<", "\\u003c")  # names come from devices
    page = _static("index.html")
    for place, text in (
        ("<title>fedagent</title>", f"<title>fedagent: {escape(title)}</title>"),
        ('<link rel="icon" href="icon.svg" type="image/svg+xml">\n', ""),
        ('<link rel="stylesheet" href="page.css">', f"<style>{_static('page.css')}</style>"),
        ('<script type="module" src="page.js"></script>\n', ""),
        ("<body>", '<body class="report">'),
        (">connecting<", f">{escape(about)}<"),
        ('aria-label="The run in figures">', f'aria-label="The run in figures">{_tiles(run)}'),
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


def _tiles(run: RunReport) -> str:
    ordered = sum(row.ordered for row in run.rounds)
    in_time = sum(row.in_time for row in run.rounds)
    seconds = sorted(row.seconds for row in run.rounds)
    shown = (one for one in run.measures if one is run.measures[0] or one.key in run.metrics)
    tiles = [
        (_number(run.metrics.get(one.key)), TILES.get(one.key, f"{one.word}, {one.where}"))
        for one in shown
    ]
    if run.opinion is not None:
        tiles.append((f"{run.opinion:.3f}", "mean opinion of the clients"))
    end = f"rounds of {run.rounds_wanted}" if run.rounds_wanted else "rounds, no end set"
    tiles += [
        (f"{len(run.rounds)}", end),
        (f"{in_time / ordered:.0%}" if ordered else "-", "of ordered updates arrived in time"),
        (f"{seconds[len(seconds) // 2]:.2f} s" if seconds else "-", "median round"),
        (credits_text(run.spent_micro), "credits spent"),
    ]
    cells = [_tile(value, what) for value, what in tiles]
    ledger = ("balanced", "good") if run.ledger_balanced else ("not balanced", "bad")
    cells.append(_tile(ledger[0], "ledger, hash chain checked", tone=ledger[1]))
    return "".join(cells)


def _tile(value: str, what: str, *, tone: str = "") -> str:
    return (
        f'<div class="tile"><p class="figure {tone}">{escape(value)}</p>'
        f'<p class="soft">{escape(what)}</p></div>'
    )


def _unmeasured(run: RunReport) -> str:
    if any(one.where == HELD_OUT for one in run.measures):
        return ""
    why = NOT_HELD_OUT if run.measures else NOT_REPORTED
    return f'<p class="hint">Model quality: {escape(why)}.</p>'


def _reached(run: RunReport) -> str:
    reached = run.reached()
    if not reached:
        return ""
    word = run.metric_line[0]
    rows = (
        (f"{target:.4g}", *(("-", "-") if row is None else (row.round, f"{row.ended_s:.1f}")))
        for target, row in reached
    )
    return f"<h2>Time to {word}</h2>" + _table((word, "rounds", "seconds"), rows)


def _evaluated(run: RunReport) -> str:
    if not run.evaluations:
        return ""
    means = run.mean_opinions()
    rows = []
    for kind in dict.fromkeys(agent.kind for agent in run.agents):
        own = [agent for agent in run.agents if agent.kind == kind]
        known = [means[agent.agent] for agent in own if agent.agent in means]
        chosen = sum(agent.ordered for agent in own) / len(own)
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


def _undelivered(run: RunReport) -> str:
    text = "".join(f'<p class="hint">{escape(line)}</p>' for line in run.undelivered)
    return f"<h2>Devices that never delivered</h2>{text}" if text else ""


def _number(value: float | None) -> str:
    return "-" if value is None else number_text(value)


def _facts(run: RunReport) -> str:
    def budget(micro: int | None) -> str:
        return "none" if micro is None else f"{credits_text(micro)} credits"

    facts = {
        "recipe": run.recipe,
        "policy": run.policy or "?",
        "seed": str(run.seed),
        "budget per edge and round": budget(run.budget_per_edge_micro),
        "budget of the run": budget(run.budget_total_micro),
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
