"""The demo on the screen: a live picture on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedagent_cli.output import credits_text, echo, emit, number_text, sparkline

from .state import AgentState, DemoState, Event

FIXED_LINES = 23
"""Lines of the roomy picture beside those of agents and edges, notes included."""
STATES = {
    "starting": "dim",
    "searching": "yellow",
    "waiting": "none",
    "training": "bold cyan",
    "collecting": "bold cyan",
    "sending": "bold blue",
    "killed": "bold red",
    "ended": "red",
    "failed": "red",
}


class View:
    """How a demo is shown while it runs; this one shows nothing."""

    def event(self, name: str, event: Event, state: DemoState) -> None:
        """Show one event; `state` has taken it in already."""

    def say(self, text: str) -> None:
        """Say what is done where no event comes for seconds; a picture shows that anyway."""

    def refresh(self, state: DemoState, elapsed_s: float) -> None:
        """Show the state; called a few times a second."""

    def close(self) -> None:
        """Give the terminal back."""


class LiveView(View):
    """A picture that changes in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def refresh(self, state: DemoState, elapsed_s: float) -> None:
        """Draw the picture."""
        lines = FIXED_LINES + len(state.agents) + len(state.edges)
        roomy = self._console.height > lines
        self._live.update(picture(state, elapsed_s, roomy=roomy), refresh=True)

    def close(self) -> None:
        """Take the picture away."""
        self._live.stop()


class LineView(View):
    """One line per round, for logs and pipes."""

    def event(self, name: str, event: Event, state: DemoState) -> None:
        """Print a round, an arrival or a note."""
        kind = event.get("event")
        if kind == "round":
            figure = number_text(state.figures[-1]) if state.figures else "-"
            self.say(
                f"round {state.round}/{state.rounds}  in time {event.get('in_time')} of "
                f"{event.get('ordered')}  {state.primary_metric.word} {figure}  {_evaluated(state)}"
                f"spent {credits_text(state.spent_micro)}" + _rented(event, state)
            )
        elif kind in ("edge_joined", "agent_joined") and name == "coordinator":
            self.say(f"{event.get('name') or event.get('edge')} found the coordinator")
        elif kind == "note":
            self.say(str(event.get("text")))

    def say(self, text: str) -> None:
        """Print a line at once."""
        echo(text)
        sys.stdout.flush()


class JsonView(View):
    """Every event as one JSON line, with the name of the process that said it."""

    def event(self, name: str, event: Event, state: DemoState) -> None:  # noqa: ARG002
        """Print the event."""
        emit({"from": name, **{key: value for key, value in event.items() if key != "at"}})


def choose_view(*, as_json: bool) -> View:
    """Return the view that fits where the output goes."""
    if as_json:
        return JsonView()
    console = Console(highlight=False)
    return LiveView(console) if console.is_terminal and console.width >= 72 else LineView()


def picture(state: DemoState, elapsed_s: float, *, roomy: bool = True) -> RenderableType:
    """Return the whole picture; without blank lines and notes when not `roomy`."""
    gap = [Text()] if roomy else []
    body = [_head(state, elapsed_s), *gap, _edges(state), *gap, _agents(state)]
    if roomy and state.notes:
        body += [Text(), Text("\n".join(state.notes), style="dim")]
    if roomy:
        body += [Text(), Text("Ctrl-C ends it cleanly and still writes the report.", style="dim")]
    title = "fedagent demo" + (f" · policy {state.policy}" if state.policy else "")
    return Panel(
        Group(*body), title=title, title_align="left", border_style="blue", padding=(int(roomy), 2)
    )


def _head(state: DemoState, elapsed_s: float) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(no_wrap=True)
    bar = ProgressBar(total=max(1, state.rounds), completed=state.round, width=40)
    doing = f"{state.round} of {state.rounds}" if state.round else "starting, all find each other"
    grid.add_row("round", Text(doing))
    grid.add_row("", bar)

    def history(name: str, values: Sequence[float], newest: str, *, top: float, style: str) -> None:
        shown = f"{newest} " if values else ""
        grid.add_row(name, Text(shown + sparkline(values, low=0.0, high=top), style=style))

    figures, opinion, volunteers = state.figures, state.opinion, state.volunteers
    top = 1.0 if state.primary_metric.rising else max(figures, default=1.0)
    newest = number_text(figures[-1]) if figures else ""
    history(state.primary_metric.word, figures, newest, top=top, style="green")
    if opinion:
        history("opinion", opinion, f"{opinion[-1]:.3f}", top=1.0, style="magenta")
    if volunteers:
        newest, top = str(volunteers[-1]), max(volunteers)
        history("volunteers", volunteers, newest, top=top, style="magenta")
    newest = str(state.in_time[-1]) if state.in_time else ""
    history("in time", state.in_time, newest, top=max(state.in_time, default=1), style="cyan")
    grid.add_row("spent", f"{credits_text(state.spent_micro)} credits")
    grid.add_row(
        "time", f"{elapsed_s:.0f} s" + (f", broker {state.broker}" if state.broker else "")
    )
    return grid


def _edges(state: DemoState) -> RenderableType:
    table = _table(("agents", "ordered", "in time", "spent"), first="edge", width=8)
    for edge in state.edges.values():
        counts = map(str, (len(edge.agents), edge.ordered, edge.in_time))
        doing = Text(edge.state, style=STATES.get(edge.state, "none"))
        table.add_row(edge.name, doing, *counts, credits_text(edge.spent_micro))
    return table


def _agents(state: DemoState) -> RenderableType:
    table = _table(("edges", "ordered", "in time", "late"), first="agent", width=7)
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for agent in state.agents.values():
        counts = map(str, (len(agent.edges), agent.ordered, agent.in_time, agent.late))
        doing = Text(_doing(agent), style=STATES.get(agent.state, "none"))
        table.add_row(agent.name, doing, *counts, Text(agent.note, style="dim"))
    return table


def _table(counts: Sequence[str], *, first: str, width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in (first, "state"):
        table.add_column(name, min_width=8)
    for name in counts:
        table.add_column(name, justify="right", min_width=width)
    return table


def _evaluated(state: DemoState) -> str:
    if state.opinion:
        return f"opinion {state.opinion[-1]:.3f}  "
    return f"volunteers {state.volunteers[-1]}  " if state.volunteers else ""


def _rented(event: Event, state: DemoState) -> str:
    if not event.get("rented"):
        return ""
    edge, iterations = state.edge_name(str(event["rented"])), event.get("iterations")
    rent = event.get("rent_micro")
    paid = credits_text(rent if isinstance(rent, int) else 0)
    return f"  {iterations or 'own'} iterations at {edge} for {paid}"


def _doing(agent: AgentState) -> str:
    if agent.state in ("training", "sending") and agent.training_at:
        return f"{agent.state} at {agent.training_at}"
    return agent.state
