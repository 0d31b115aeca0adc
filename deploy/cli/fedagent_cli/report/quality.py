"""Plots of how good the models are: accuracy or error, and loss."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedagent_cli.output import number_text
from fedagent_task.measures import (
    ACCURACY,
    DEVICE_SCORE,
    LOSS,
    MAE,
    RMSE,
    TRAIN_ERROR,
    TRAIN_LOSS,
    Measure,
)

from .colours import COLOURS, by_round, legend_above
from .run_report import ReportRound, RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Plot = tuple[str, str, Callable[["Axes"], None]]
WIDE_RANGE = 50.0
"""Largest over smallest value beyond which an axis counts in powers of ten."""
NAMES = {
    "accuracy": "held-out",
    "loss": "held-out",
    "rmse": "root of the mean square",
    "mae": "mean absolute",
    "device_score": "on devices",
    "train_loss": "in training",
    "train_error": "in training",
}
"""Of a line; beside it stands its newest value."""


def quality_plots(run: RunReport, rows: tuple[ReportRound, ...]) -> list[Plot]:
    """Return title, text and drawing of what was measured of the models."""
    regression = RMSE in run.measures or TRAIN_ERROR in run.measures
    plots: list[Plot] = []
    for title, text, wanted in _groups(regression=regression):
        known = [one for one in wanted if one in run.measures]
        shown = [one for one in known if any(row.of(one) is not None for row in rows)]
        if regression and LOSS in shown:  # of training it is half of that: no line beside it
            shown = [LOSS]
        if shown:
            shows = f"{text} {_where(shown)}"
            plots.append((title, shows, _lines(title.lower(), tuple(shown), rows)))
    return plots


def _groups(*, regression: bool) -> list[tuple[str, str, tuple[Measure, ...]]]:
    loss = ("Loss", "Less is better.", (LOSS, TRAIN_LOSS))
    if not regression:
        right = "The share of samples whose class the global model names."
        return [("Accuracy", right, (ACCURACY, DEVICE_SCORE)), loss]
    wrong = "How far the global model is off, in the unit of what it predicts; less is better."
    score = "1 / (1 + error); more is better."
    return [("Error", wrong, (RMSE, MAE, TRAIN_ERROR)), loss, ("Score", score, (DEVICE_SCORE,))]


def _where(shown: Sequence[Measure]) -> str:
    samples = {
        LOSS.where: "Held-out: on samples that no device learns from, after each merge.",
        DEVICE_SCORE.where: "On devices: a round's base model on their new samples, before.",
        TRAIN_LOSS.where: "In training: as devices report it, on samples they learn from.",
    }
    return " ".join(samples[where] for where in dict.fromkeys(one.where for one in shown))


def _lines(
    name: str, shown: tuple[Measure, ...], rows: tuple[ReportRound, ...]
) -> Callable[["Axes"], None]:
    def draw(axes: "Axes") -> None:
        from matplotlib.ticker import (  # noqa: PLC0415 - optional package, half a second
            NullFormatter,
            StrMethodFormatter,
        )

        every: list[float] = []
        for index, one in enumerate(shown):
            points = [(row.round, value) for row in rows if (value := row.of(one)) is not None]
            x, y = zip(*points, strict=True)
            marker = "o" if len(x) < 3 else None
            colour = COLOURS[index]
            label = f"{NAMES[one.key]} {number_text(y[-1])}"
            axes.plot(x, y, color=colour, linewidth=1.8, marker=marker, label=label)
            every += y
        legend_above(axes, columns=3)
        if shown[0].rising:
            axes.set_ylim(0, 1.02)
        elif min(every) > 0 and max(every) > WIDE_RANGE * min(every):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(bottom=0)
        by_round(axes)
        axes.set_ylabel(name)

    return draw
