"""Curves that only a report has: what the coordinator keeps no picture of while it runs."""

from collections.abc import Sequence

from .indices import Columns
from .run_report import RunReport

MANY = 400
"""Points of one curve at most; longer ones are thinned evenly."""
SHOWN = 40
"""Clients in one chart at most."""
COLOURS = 8
"""Of static/page.css."""
LATENCY = ("download", "computation", "upload", "rest of the round at its edge")
Chart = dict[str, object]


def curves(run: RunReport) -> list[Chart]:
    """Return every chart that has data, as static/views.js draws it."""
    kinds = list(dict.fromkeys(agent.kind for agent in run.agents))
    by_kind = "; coloured by what they hold." if len(kinds) > 1 else "."
    opinions: Columns = {}
    for row in run.evaluations:
        for agent, score in row.scores.items():
            opinions.setdefault(agent, []).append((row.round, score))
    found = [
        _by_client(run, kinds, title, text + by_kind, columns)
        for title, text, columns in (
            ("Opinions", "What each client thinks of each global model", opinions),
            ("Index", "By which the policy chose: the largest ones train", run.indices),
            (
                "Belief",
                "Probability that a client is good, by its own opinion and its neighbours'",
                run.beliefs,
            ),
            *(
                (
                    f"What the devices knew: {name}",
                    "Read from the devices' own directories: none of this was ever sent",
                    columns,
                )
                for name, columns in run.inside.items()
            ),
        )
        if columns
    ]
    if steps := [(row.round, float(row.iterations)) for row in run.rounds if row.iterations]:
        found.append(_chart("Local iterations", "In each round.", [("iterations", 0, steps)], []))
    controlled = any(row.iterations or row.rented for row in run.rounds)
    if timed := [row for row in run.rounds if row.latency_s and controlled]:
        parts = [
            (name, at, [(row.round, row.latency_s[at]) for row in timed])
            for at, name in enumerate(LATENCY)
        ]
        text = "Seconds that the slowest device of each round took."
        found.append(_chart("Latency of the slowest device", text, parts, LATENCY))
    return found


def _by_client(
    run: RunReport, kinds: Sequence[str], title: str, text: str, columns: Columns
) -> Chart:
    series = [
        (agent.name, kinds.index(agent.kind) % COLOURS, columns[agent.agent])
        for agent in run.agents
        if columns.get(agent.agent)
    ]
    keys = [kind or "others" for kind in kinds] if len(kinds) > 1 else []
    return _chart(title, text, series[:SHOWN], keys[:COLOURS])


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
