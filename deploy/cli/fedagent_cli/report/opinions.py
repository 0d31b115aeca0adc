"""Plots of what clients think of the models, and of who was chosen for it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedagent_coordinator.database.evaluations import PEERS, ModelEvaluation

from .colours import COLOURS, by_round, legend_above, max_ticks, names_beside, whole
from .run_report import ReportAgent, RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[["Axes"], None]
Plot = tuple[str, str, Draw]
MANY = 400
"""Rounds of one client at most; longer runs are thinned evenly."""
SHOWN = 40
"""Clients in a plot at most."""
NO_KIND = ""


def opinion_plots(run: RunReport) -> list[Plot]:
    """Return title, text and drawing of every plot that has data; none without evaluations."""
    names = {agent.agent: agent.name for agent in run.agents}
    reported = tuple(row for row in run.evaluations if row.scores)
    volunteered = tuple(row for row in run.evaluations if row.mode == PEERS)
    plots: list[Plot] = []
    if reported:
        plots += _reported(run, reported, names)
    if volunteered:
        plots += [
            (
                "Volunteers",
                (
                    "Who was among the best; the devices found it out among themselves. Their "
                    "opinions never left them."
                ),
                lambda axes: _volunteers(axes, volunteered, names),
            ),
            (
                "Chosen, client by client",
                "How often each client trained" + _by_kind(run),
                lambda axes: _chosen(axes, run, {}),
            ),
        ]
    plots += _inside(run)
    return plots


def panels(rows: Sequence[ModelEvaluation], names: Mapping[str, str]) -> list[tuple[str, Draw]]:
    """Return titles and drawings for a picture of opinions alone."""
    reported = tuple(row for row in rows if row.scores)
    volunteered = tuple(row for row in rows if row.mode == PEERS)
    drawn: list[tuple[str, Draw]] = []
    if reported:
        drawn += [
            ("mean, least and largest", lambda axes: _band(axes, reported)),
            ("client by client", lambda axes: _heat(axes, reported, names)),
        ]
    if volunteered:
        drawn.append(("volunteers", lambda axes: _volunteers(axes, volunteered, names)))
    return drawn or [("nobody answered", lambda axes: axes.set_axis_off())]


def _reported(
    run: RunReport, rows: tuple[ModelEvaluation, ...], names: Mapping[str, str]
) -> list[Plot]:
    plots: list[Plot] = [
        (
            "Opinions",
            (
                "What clients think of each global model, on samples no device learnt from: "
                "the mean, and from the smallest to the largest."
            ),
            lambda axes: _band(axes, rows),
        ),
        (
            "Opinions, client by client",
            "Dark is a low opinion, light a high one; a gap is none.",
            lambda axes: _heat(axes, rows, names),
        ),
        (
            "Chosen, and of which opinion",
            "How often each client trained (bars), and its mean opinion (dots)" + _by_kind(run),
            lambda axes: _chosen(axes, run, mean_opinions(run)),
        ),
    ]
    for title, text, columns in (
        ("Index", "By which the policy chose: the largest ones train", run.indices),
        ("Belief", "That a client is good, given what it and its neighbours say", run.beliefs),
    ):
        if columns:
            plots.append((title, text + _by_kind(run), _lines(run, columns, title.lower())))
    return plots


def _inside(run: RunReport) -> list[Plot]:
    return [
        (
            f"What the devices knew: {name}",
            "From the devices' own directories, which only their owner can read: none of this "
            "was ever sent to an edge or the coordinator" + _by_kind(run),
            _lines(run, columns, name),
        )
        for name, columns in run.inside.items()
        if columns
    ]


def mean_opinions(run: RunReport) -> dict[str, float]:
    """Return each client's mean opinion over the run, by agent id."""
    scores: dict[str, list[float]] = {}
    for row in run.evaluations:
        for agent, score in row.scores.items():
            scores.setdefault(agent, []).append(score)
    return {agent: sum(own) / len(own) for agent, own in scores.items()}


def _by_kind(run: RunReport) -> str:
    kinds = _kinds(run)
    return f"; coloured by what they hold: {', '.join(kinds)}." if len(kinds) > 1 else "."


def _kinds(run: RunReport) -> list[str]:
    return list(dict.fromkeys(agent.kind for agent in run.agents))


def _band(axes: "Axes", rows: Sequence[ModelEvaluation]) -> None:
    x = [row.round for row in rows]
    least, mean, most = (
        np.array([getattr(row, name) for row in rows], dtype=np.float64)
        for name in ("least", "mean", "most")
    )
    axes.fill_between(x, least, most, color=COLOURS[0], alpha=0.2, linewidth=0)
    marker = "o" if len(x) < 3 else None
    axes.plot(x, mean, color=COLOURS[0], linewidth=1.8, marker=marker, label="mean")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("round of the model")
    axes.set_ylabel(rows[-1].metric or "opinion")
    whole(axes, "x")


def _heat(axes: "Axes", rows: Sequence[ModelEvaluation], names: Mapping[str, str]) -> None:
    rows = rows[:: 1 + len(rows) // MANY]
    agents = [agent for agent in names if any(agent in row.scores for row in rows)][:SHOWN]
    grid = np.array([[row.scores.get(agent, np.nan) for row in rows] for agent in agents])
    # As an image: a path for each cell would be the largest part of the page.
    whole_picture = (0, len(rows), len(agents), 0)
    axes.imshow(
        grid,
        vmin=0,
        vmax=1,
        cmap="cividis",
        aspect="auto",
        extent=whole_picture,
        interpolation="none",
    )
    _rounds_below(axes, rows)
    _clients_beside(axes, [names[agent] for agent in agents])


def _volunteers(axes: "Axes", rows: Sequence[ModelEvaluation], names: Mapping[str, str]) -> None:
    rows = rows[:: 1 + len(rows) // MANY]
    agents = [agent for agent in names if any(agent in row.volunteers for row in rows)][:SHOWN]
    for line, agent in enumerate(agents):
        at = [index + 0.5 for index, row in enumerate(rows) if agent in row.volunteers]
        axes.plot(at, [line + 0.5] * len(at), "s", color=COLOURS[0], markersize=4)
    axes.set_xlim(0, len(rows))
    _rounds_below(axes, rows)
    _clients_beside(axes, [names[agent] for agent in agents])


def _rounds_below(axes: "Axes", rows: Sequence[ModelEvaluation]) -> None:
    step = 1 + len(rows) // max_ticks(axes)
    places = range(0, len(rows), step)
    axes.set_xticks([place + 0.5 for place in places], [str(rows[p].round) for p in places])
    axes.set_xlabel("round of the model")
    axes.grid(visible=False)


def _clients_beside(axes: "Axes", names: Sequence[str]) -> None:
    names_beside(axes, names, at=0.5)
    axes.set_ylim(len(names), 0)


def _chosen(axes: "Axes", run: RunReport, means: Mapping[str, float]) -> None:
    agents = run.agents[:SHOWN]
    kinds = _kinds(run)
    places = np.arange(len(agents))
    for index, kind in enumerate(kinds):
        own = [place for place in places if agents[place].kind == kind]
        counts = [agents[place].ordered for place in own]
        colour = COLOURS[index % len(COLOURS)]
        axes.barh(own, counts, color=colour, height=0.7, label=kind or "chosen")
    names_beside(axes, [agent.name for agent in agents])
    axes.invert_yaxis()
    axes.set_xlabel("rounds")
    whole(axes, "x")
    if means:
        other = axes.twiny()
        known = [place for place in places if agents[place].agent in means]
        other.plot([means[agents[place].agent] for place in known], known, "o", color=COLOURS[5])
        other.set_xlim(0, 1)
        other.set_xlabel("mean opinion")
        other.grid(visible=False)
    if len(kinds) > 1:
        legend_above(axes, columns=3, higher=bool(means))


def _lines(run: RunReport, columns: Mapping[str, Sequence[tuple[int, float]]], name: str) -> Draw:
    kinds = _kinds(run)

    def draw(axes: "Axes") -> None:
        labelled: set[str] = set()
        for agent in _listed(run.agents, columns):
            points = columns[agent.agent]
            x, y = zip(*points[:: 1 + len(points) // MANY], strict=True)
            label = agent.kind if agent.kind and agent.kind not in labelled else None
            labelled.add(agent.kind)
            colour = COLOURS[kinds.index(agent.kind) % len(COLOURS)]
            marker = "o" if len(x) < 3 else None
            axes.plot(x, y, color=colour, linewidth=1.0, alpha=0.8, label=label, marker=marker)
        by_round(axes)
        axes.set_ylabel(name)
        if labelled - {NO_KIND}:
            legend_above(axes, columns=4)

    return draw


def _listed(agents: Sequence[ReportAgent], columns: Mapping[str, object]) -> list[ReportAgent]:
    return [agent for agent in agents if columns.get(agent.agent)][:SHOWN]
