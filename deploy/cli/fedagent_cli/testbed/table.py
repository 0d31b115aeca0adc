"""The table of a comparison, for people."""

from collections.abc import Sequence

import numpy as np

from fedagent_cli.output import say
from fedagent_testbed.study import Comparison, Figure
from fedagent_testbed.study.compare import figure
from fedagent_testbed.study.history import History, jain


def write_table(result: Comparison) -> None:
    """Print one line per policy, best utility first; then who was skipped, and why."""
    recipe, seeds = result.recipe, len(result.seeds)
    ranked = sorted(result.histories, key=lambda name: -(result.utility(name).mean or 0.0))
    learns = bool(recipe.training.dataset)
    columns = ["policy", "utility", "regret", "regret-p"]
    if learns:
        columns += ["accuracy", *(f"to {target:g}" for target in recipe.training.targets)]
    columns += ["spent", "s/round", "min rate", "jain", "ms"]
    rows = [[name, *_cells(result, name, learns=learns)] for name in ranked]
    aligned([columns, *rows])
    say(f"{recipe.name}: {recipe.rounds.count} rounds, {seeds} seeds, mean ± 95 %")
    for name, why in result.skipped.items():
        say(f"skipped {name}: {why}")


def _cells(result: Comparison, name: str, *, learns: bool) -> list[str]:
    """Return the cells of one policy."""
    runs = result.histories[name]
    cells = [
        text(result.utility(name), 0),
        text(result.regret(name, "oracle"), 0),
        text(result.regret(name, "oracle-p"), 0),
    ]
    if learns:
        cells.append(text(figure([_last(run) for run in runs]), 3))
        cells += [
            text(figure([run.first_at(target) for run in runs]), 0)
            for target in result.recipe.training.targets
        ]
    return [
        *cells,
        text(figure([float(run.spent.sum()) for run in runs]), 0),
        text(figure([float(run.seconds.mean()) for run in runs]), 2),
        text(figure([float(run.rates().min(initial=0.0)) for run in runs]), 3),
        text(figure([jain(run.rates()) for run in runs]), 2),
        text(figure([float(np.median(run.decide_ms)) for run in runs]), 2),
    ]


def _last(run: History) -> float | None:
    tested = run.accuracy[np.isfinite(run.accuracy)]
    return float(tested[-1]) if len(tested) else None


def aligned(rows: Sequence[Sequence[str]]) -> None:
    """Print rows as columns; lines longer than the terminal are the terminal's affair."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join((first, *others)).rstrip())


def text(value: Figure, digits: int) -> str:
    """Return mean ± interval; a dash where nothing is known."""
    if value.mean is None:
        return "-"
    if value.ci95 is None:
        return f"{value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} ± {value.ci95:.{digits}f}"
