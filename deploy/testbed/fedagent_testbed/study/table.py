"""A comparison as a table of text: for a terminal, and for a notebook."""

from html import escape
from typing import TYPE_CHECKING

from .streams import MARGIN

if TYPE_CHECKING:
    from .comparison import Comparison, Figure

_SELECTION = {
    "utility": ("utility", 0),
    "regret_oracle": ("regret", 0),
    "regret_oracle_p": ("regret-p", 0),
    "accuracy": ("accuracy", 3),
    "spent": ("spent", 0),
    "seconds_per_round": ("s/round", 2),
    "min_rate": ("min rate", 3),
    "jain": ("jain", 2),
    "decision_ms": ("ms", 2),
}
_STREAMS = {
    "latency_s": ("latency s", 1),
    "compute_s": ("compute", 1),
    "transfer_s": ("transfer", 1),
    "aggregate_s": ("aggregate", 1),
    "final_loss": ("loss", 4),
    "mean_loss": ("mean loss", 4),
    "seconds_to_best": ("s to best", 1),
    "rounds": ("rounds", 0),
    "spent": ("spent", 1),
    "rho": ("rho", 1),
    "peak_s": ("peak s", 2),
    "within_limit": ("in limit", 3),
    "violation_s": ("over s", 1),
    "edges": ("edges", 0),
    "decision_ms": ("ms", 2),
    "error": ("error", 3),
}
"""Columns: the figure, its head, and its digits."""


def rows_of(result: "Comparison") -> list[list[str]]:
    """Return heads and one row per policy, the best first."""
    rows: list[list[str]] = []
    for name in result.ranked():
        cells = _cells(result, name)
        rows = rows or [["policy", *cells]]
        rows.append([name, *cells.values()])
    return rows


def _cells(result: "Comparison", name: str) -> dict[str, str]:
    recipe, figures, cells = result.recipe, result.figures(name), dict[str, str]()
    for key, (head, digits) in (_STREAMS if result.of_streams else _SELECTION).items():
        if key == "accuracy" and not recipe.training.dataset:
            continue
        if key == "error" and not recipe.streaming.prequential:
            continue
        cells[head] = figures[key].text(digits)
        if key in {"final_loss", "mean_loss"} and result.reaches_best(name, key):
            cells[head] += "*"
        for target in recipe.training.targets if key == "accuracy" else ():
            rounds, seconds = result.to_target(name, target)
            cells[f"to {target:g}"] = _reached(rounds, 1)
            cells[f"s to {target:g}"] = _reached(seconds, 0)
    return cells


def caption(result: "Comparison") -> str:
    """Return what was compared, in a line."""
    recipe, seeds = result.recipe, seeds_text(len(result.seeds))
    if result.of_streams:
        return (
            f"{recipe.name}: {recipe.rounds.count} rounds at most, {recipe.streaming.budget:g} "
            f"credits of rent, {seeds}, mean ± 95 %; * within {MARGIN:g} of the least loss"
        )
    if len(result.seeds) == 1:
        return f"{recipe.name}: {recipe.rounds.count} rounds, seed {result.seeds[0]}"
    return f"{recipe.name}: {recipe.rounds.count} rounds, {seeds}, mean ± 95 %"


def notes_of(result: "Comparison") -> list[str]:
    """Return the lines below a table: what was compared, and what did not run."""
    lines = [caption(result)]
    if result.of_streams and (still := result.persistence).mean is not None:
        lines.append(f"persistence (as warm as now): error {still.text(3)}")
    return [*lines, *(f"skipped {name}: {why}" for name, why in result.skipped.items())]


def seeds_text(count: int) -> str:
    """Return `1 seed`, `5 seeds`."""
    return f"{count} seed" if count == 1 else f"{count} seeds"


def html_of(result: "Comparison") -> str:
    """Return the table for a notebook."""
    heads, *rows = rows_of(result)
    lines = ["<table>", f"<caption>{escape(caption(result))}</caption>"]
    lines.append("<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>")
    lines += [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    return "\n".join([*lines, "</table>"])


def _reached(value: "Figure", digits: int) -> str:
    """Return mean ± interval of the seeds that got there, and how many did if not all."""
    seeds = len(value.per_seed)
    some = "" if value.reached == seeds else f" ({value.reached}/{seeds})"
    return value.text(digits) + some
