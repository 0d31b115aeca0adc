"""A comparison as a table of text: for a terminal, and for a notebook."""

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compare import Comparison, Figure


def rows_of(result: "Comparison") -> list[list[str]]:
    """Return heads and one row per policy, best utility first."""
    training = result.recipe.training
    ranked = sorted(result.histories, key=lambda name: -(result.utility(name).mean or 0.0))
    heads = ["policy", "utility", "regret", "regret-p"]
    if training.dataset:
        heads.append("accuracy")
        for target in training.targets:
            heads += [f"to {target:g}", f"s to {target:g}"]
    heads += ["spent", "s/round", "min rate", "jain", "ms"]
    return [heads, *([name, *_cells(result, name)] for name in ranked)]


def caption(result: "Comparison") -> str:
    """Return what was compared, in a line."""
    recipe, seeds = result.recipe, len(result.seeds)
    if seeds == 1:
        return f"{recipe.name}: {recipe.rounds.count} rounds, seed {result.seeds[0]}"
    return f"{recipe.name}: {recipe.rounds.count} rounds, {seeds} seeds, mean ± 95 %"


def html_of(result: "Comparison") -> str:
    """Return the table for a notebook."""
    heads, *rows = rows_of(result)
    lines = ["<table>", f"<caption>{escape(caption(result))}</caption>"]
    lines.append("<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>")
    lines += [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    return "\n".join([*lines, "</table>"])


def text(value: "Figure", digits: int) -> str:
    """Return mean ± interval; a dash where nothing is known."""
    if value.mean is None:
        return "-"
    if value.ci95 is None:
        return f"{value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} ± {value.ci95:.{digits}f}"


def reached_text(value: "Figure", digits: int) -> str:
    """Return mean ± interval of the seeds that got there, and how many did if not all."""
    seeds = len(value.per_seed)
    some = "" if value.reached == seeds else f" ({value.reached}/{seeds})"
    return text(value, digits) + some


def _cells(result: "Comparison", name: str) -> list[str]:
    """Return the cells of one policy."""
    figures, training = result.figures(name), result.recipe.training
    cells = [text(figures[key], 0) for key in ("utility", "regret_oracle", "regret_oracle_p")]
    if training.dataset:
        cells.append(text(figures["accuracy"], 3))
        for target in training.targets:
            rounds, seconds = result.to_target(name, target)
            cells += [reached_text(rounds, 1), reached_text(seconds, 0)]
    last = {"spent": 0, "seconds_per_round": 2, "min_rate": 3, "jain": 2, "decision_ms": 2}
    return [*cells, *(text(figures[key], digits) for key, digits in last.items())]
