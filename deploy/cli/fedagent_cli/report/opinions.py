"""Plots of what clients think of the models, and of who was chosen for it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedagent_cli.drawing import (
    COLOURS,
    Draw,
    by_round,
    legend_above,
    max_ticks,
    names_beside,
    whole,
)
from fedagent_coordinator.database.evaluations import PEERS, ModelEvaluation

from .indices import Columns
from .run_report import RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Plot = tuple[str, str, Draw]
"""Title, what it shows, and how."""
Rows = Sequence[ModelEvaluation]
Names = Mapping[str, str]
MANY = 400
"""Rounds of one client at most; longer runs are thinned evenly."""
SHOWN = 40
"""Clients in a plot at most."""


def opinion_plots(run: RunReport) -> Iterator[Plot]:
    """Yield every plot that has data; none without evaluations."""
    names = {agent.agent: agent.name for agent in run.agents}
    reported, volunteered = _by_mode(run.evaluations)
    kinds = _kinds(run)
    by_kind = f"; coloured by what they hold: {', '.join(kinds)}." if len(kinds) > 1 else "."
    if reported:
        text = (
            "Clients' opinions of each global model, on samples that no device trained on: the "
            "mean, and the range from smallest to largest."
        )
        yield "Opinions", text, partial(_band, reported)
        text = "Dark is a low opinion, light a high one; a gap means no opinion."
        yield "Opinions per client", text, partial(_heat, reported, names)
        text = "How often each client trained (bars), and its mean opinion (dots)" + by_kind
        yield "Selections and opinions", text, partial(_chosen, run, run.mean_opinions())
        for title, text, columns in (
            (
                "Index",
                "The values by which the policy chose: the clients with the largest ones train",
                run.indices,
            ),
            (
                "Belief",
                "Probability that a client is good, given its own opinion and its neighbours'",
                run.beliefs,
            ),
        ):
            if columns:
                yield title, text + by_kind, partial(_lines, run, columns, title.lower())
    if volunteered:
        text = (
            "Clients among the best, as the devices agreed among themselves. Their opinions "
            "never left the devices."
        )
        yield "Volunteers", text, partial(_volunteers, volunteered, names)
        text = "How often each client trained" + by_kind
        yield "Selections per client", text, partial(_chosen, run, {})
    for name, columns in run.inside.items():
        if columns:
            yield (
                f"What the devices knew: {name}",
                "Read from the devices' own directories, which only their owner can read: none "
                "of this was ever sent to an edge or the coordinator" + by_kind,
                partial(_lines, run, columns, name),
            )


def panels(rows: Rows, names: Names) -> Iterator[tuple[str, Draw]]:
    """Yield titles and drawings for a picture of opinions alone."""
    reported, volunteered = _by_mode(rows)
    if reported:
        yield "mean, least and largest", partial(_band, reported)
        yield "client by client", partial(_heat, reported, names)
    if volunteered:
        yield "volunteers", partial(_volunteers, volunteered, names)
    if not reported and not volunteered:
        yield "nobody answered", lambda axes: axes.set_axis_off()


def _by_mode(rows: Rows) -> tuple[Rows, Rows]:
    """Return the evaluations that have scores, and those that volunteers answered."""
    return [row for row in rows if row.scores], [row for row in rows if row.mode == PEERS]


def _kinds(run: RunReport) -> list[str]:
    return list(dict.fromkeys(agent.kind for agent in run.agents))


def _band(rows: Rows, axes: "Axes") -> None:
    x = [row.round for row in rows]
    least, mean, most = (
        np.array([getattr(row, name) for row in rows], dtype=np.float64)
        for name in ("least", "mean", "most")
    )
    axes.fill_between(x, least, most, color=COLOURS[0], alpha=0.2, linewidth=0)
    marker = "o" if len(x) < 3 else None
    axes.plot(x, mean, color=COLOURS[0], linewidth=1.8, marker=marker, label="mean")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel(rows[-1].metric or "opinion")
    by_round(axes, "round of the model")


def _heat(rows: Rows, names: Names, axes: "Axes") -> None:
    rows = rows[:: 1 + len(rows) // MANY]
    agents = [agent for agent in names if any(agent in row.scores for row in rows)][:SHOWN]
    grid = np.array([[row.scores.get(agent, np.nan) for row in rows] for agent in agents])
    # As an image: a path for each cell would be the largest part of the page.
    axes.imshow(
        grid,
        vmin=0,
        vmax=1,
        cmap="cividis",
        aspect="auto",
        extent=(0, len(rows), len(agents), 0),
        interpolation="none",
    )
    _clients_by_rounds(rows, [names[agent] for agent in agents], axes)


def _volunteers(rows: Rows, names: Names, axes: "Axes") -> None:
    rows = rows[:: 1 + len(rows) // MANY]
    agents = [agent for agent in names if any(agent in row.volunteers for row in rows)][:SHOWN]
    for line, agent in enumerate(agents):
        at = [index + 0.5 for index, row in enumerate(rows) if agent in row.volunteers]
        axes.plot(at, [line + 0.5] * len(at), "s", color=COLOURS[0], markersize=4)
    axes.set_xlim(0, len(rows))
    _clients_by_rounds(rows, [names[agent] for agent in agents], axes)


def _clients_by_rounds(rows: Rows, names: Sequence[str], axes: "Axes") -> None:
    places = range(0, len(rows), 1 + len(rows) // max_ticks(axes))
    axes.set_xticks([place + 0.5 for place in places], [str(rows[p].round) for p in places])
    axes.set_xlabel("round of the model")
    axes.grid(visible=False)
    names_beside(axes, names, at=0.5)
    axes.set_ylim(len(names), 0)


def _chosen(run: RunReport, means: Mapping[str, float], axes: "Axes") -> None:
    agents = run.agents[:SHOWN]
    kinds = _kinds(run)
    for index, kind in enumerate(kinds):
        own = [place for place, agent in enumerate(agents) if agent.kind == kind]
        counts = [agents[place].ordered for place in own]
        colour = COLOURS[index % len(COLOURS)]
        axes.barh(own, counts, color=colour, height=0.7, label=kind or "chosen")
    names_beside(axes, [agent.name for agent in agents])
    axes.invert_yaxis()
    axes.set_xlabel("rounds")
    whole(axes, "x")
    if means:
        other = axes.twiny()
        known = [place for place, agent in enumerate(agents) if agent.agent in means]
        other.plot([means[agents[place].agent] for place in known], known, "o", color=COLOURS[5])
        other.set_xlim(0, 1)
        other.set_xlabel("mean opinion")
        other.grid(visible=False)
    if len(kinds) > 1:
        legend_above(axes, columns=3, higher=bool(means))


def _lines(run: RunReport, columns: Columns, name: str, axes: "Axes") -> None:
    kinds = _kinds(run)
    labelled: set[str] = set()
    for agent in [agent for agent in run.agents if columns.get(agent.agent)][:SHOWN]:
        points = columns[agent.agent]
        x, y = zip(*points[:: 1 + len(points) // MANY], strict=True)
        label = agent.kind if agent.kind and agent.kind not in labelled else None
        labelled.add(agent.kind)
        colour = COLOURS[kinds.index(agent.kind) % len(COLOURS)]
        marker = "o" if len(x) < 3 else None
        axes.plot(x, y, color=colour, linewidth=1.0, alpha=0.8, label=label, marker=marker)
    by_round(axes)
    axes.set_ylabel(name)
    if any(labelled):
        legend_above(axes, columns=4)
