"""The report as one HTML file: no script, no request to anywhere, light and dark."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from fedagent_cli.drawing import available
from fedagent_cli.output import credits_text, number_text
from fedagent_cli.runs import NOT_HELD_OUT, NOT_REPORTED
from fedagent_coordinator.database.evaluations import PEERS
from fedagent_task.measures import HELD_OUT

from .plots import draw_all
from .run_report import ReportRound, RunReport

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6570; --line: #dfe3e8;
  --card: #f6f7f9; --paper: #ffffff; --good: #1d7f5c; --bad: #b3401f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #98a2ad;
  --line: #30363d; --card: #1a1f25; --paper: #0f1317; --good: #4cc38a; --bad: #f0855f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2.5rem 1.25rem 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.12rem; margin: 2.6rem 0 .2rem; }
p { margin: .2rem 0 .9rem; color: var(--soft); max-width: 44rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr));
  gap: .75rem; margin: 1.6rem 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.5rem; font-weight: 650; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .86rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
.narrow { display: none; max-width: 26rem; }
@media (max-width: 40rem) { .wide { display: none; } .narrow { display: block; }
  body { padding: 1.5rem 1.1rem 3rem; } }
figure { margin: .4rem 0 0; } figure svg { width: 100%; height: auto; display: block;
  color: var(--ink); font-family: inherit; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .34rem .7rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { font-weight: 600; color: var(--soft); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
table.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.facts td:first-child { color: var(--soft); white-space: nowrap; width: 13rem; }
details summary { cursor: pointer; color: var(--soft); margin: .5rem 0; }
code { font: .9em ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.hint { border-left: 3px solid var(--line); padding-left: .9rem; }
"""
TILES = {
    "device_score": "score on the devices' samples",
    "train_loss": "training loss, as devices report it",
    "train_error": "training error, as devices report it",
}
"""What a tile says, where that is not a measure's word and samples."""
NO_PLOTS = (
    "The plots need matplotlib: <code>fedagent doctor</code> says how to add it, then "
    "<code>fedagent report DATA_DIR</code> writes this page again."
)


def write_report(run: RunReport, folder: Path, *, name: str = "report") -> Path:
    """Write `NAME.html` and `NAME.json` into a folder and return the page's path.

    Without matplotlib the page has no plots and says what to install.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = draw_all(run) if available() else []
    html = folder / f"{name}.html"
    html.write_text(render(run, drawn), encoding="utf-8")
    record = json.dumps(run.record(), indent=1)
    (folder / f"{name}.json").write_text(record + "\n", encoding="utf-8")
    return html


def render(run: RunReport, plots: Sequence[tuple[str, str, str]]) -> str:
    """Return the whole page; `plots` are ``(title, what it shows, svg)``."""
    title = f"{run.recipe} with policy {run.policy}"
    done = f"{run.state} after {run.progress}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>fedagent: {escape(title)}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>Run <code>{escape(run.run)}</code>, {done} rounds.</p>",
        *([f'<p class="hint">{escape(run.conclusion)}.</p>'] if run.conclusion else []),
        _tiles(run),
        _unmeasured(run),
    ]
    for name, text, svg in plots:
        parts.append(f"<h2>{escape(name)}</h2><p>{escape(text)}</p><figure>{svg}</figure>")
    if not plots and run.rounds:
        parts.append(f'<p class="hint">{NO_PLOTS}</p>')
    parts += [
        _reached(run),
        _evaluated(run),
        _agents(run),
        _edges(run),
        _rounds(run),
        _facts(run),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


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
    return f'<div class="tiles">{"".join(cells)}</div>'


def _tile(value: str, what: str, *, tone: str = "") -> str:
    return (
        f'<div class="tile"><b class="{tone}">{escape(value)}</b><span>{escape(what)}</span></div>'
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


def _agents(run: RunReport) -> str:
    rows = (
        (
            *(agent.name, agent.ordered, agent.in_time, agent.outcomes.get("late", 0), agent.used),
            credits_text(agent.paid_micro),
            ", ".join(
                f"{count} {status}"
                for status, count in sorted(agent.outcomes.items())
                if status not in ("arrived", "late")
            ),
        )
        for agent in run.agents
    )
    head = ("agent", "ordered", "in time", "late", "in the model", "paid", "otherwise")
    lines = (line for agent in run.agents if (line := agent.undelivered()))
    text = "".join(f'<p class="hint">{escape(line)}</p>' for line in lines)
    return "<h2>Agents</h2>" + text + _table(head, rows)


def _edges(run: RunReport) -> str:
    rows = []
    for edge in run.edges:
        shares = [row.edges[edge] for row in run.rounds if edge in row.edges]
        rents = [row.rent_micro for row in run.rounds if row.rented == edge]
        rows.append(
            (
                run.edge_name(edge),
                *(
                    sum(getattr(one, name) for one in shares)
                    for name in ("ordered", "in_time", "used")
                ),
                sum(bool(share.failed) for share in shares),
                credits_text(sum(share.spent_micro for share in shares)),
                *((len(rents), credits_text(sum(rents))) if run.controlled else ()),
            )
        )
    more = ("times rented", "rent") if run.controlled else ()
    head = ("edge", "ordered", "in time", "in the model", "failed rounds", "spent", *more)
    return "<h2>Edges</h2>" + _table(head, rows)


def _number(value: float | None) -> str:
    return "-" if value is None else number_text(value)


def _rounds(run: RunReport) -> str:
    shown = [one for one in run.measures if one.key in run.metrics]
    rows = (
        (
            *(row.round, row.ordered, row.in_time, row.used),
            *(_number(row.of(one)) for one in shown),
            *(credits_text(row.paid_micro), f"{row.seconds:.2f}"),
            *(_controls(run, row) if run.controlled else ()),
        )
        for row in run.rounds
    )
    words = [one.word for one in shown]
    more = ("iterations", "rented edge", "rent") if run.controlled else ()
    head = ("round", "ordered", "in time", "in the model", *words, "spent", "seconds", *more)
    table = _table(head, rows)
    return f"<h2>Rounds</h2><details><summary>All rounds as a table</summary>{table}</details>"


def _controls(run: RunReport, row: ReportRound) -> tuple[object, ...]:
    edge = run.edge_name(row.rented) if row.rented else "-"
    return (row.iterations or "-", edge, credits_text(row.rent_micro))


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
    return f'<div class="scroll">{table}</div>'
