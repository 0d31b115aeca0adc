"""A run drawn in place on a terminal, by rich: of `status --watch` and of the demo."""

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedagent_cli.output import sparkline
from fedagent_protocol.errors import credits_text

from .look import Look

SHOWN = 8
NARROW = 48
"""Columns of a terminal that has no place for a round's seconds."""


class Drawn:
    """Draws one look after another in the same place."""

    def __init__(self, console: Console | None = None, *, transient: bool = False) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=transient)
        self._live.start()

    def show(self, look: Look | None, *more: str) -> None:
        """Draw a look at a run, and lines of text below it."""
        parts = [] if look is None else [picture(look, self._live.console.width)]
        text = Text("\n".join(more), style="dim")
        self._live.update(Group(*parts, *([text] if more else [])), refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def picture(look: Look, width: int = 80) -> Group:
    """Return what is drawn: the run, its measure over the rounds, the newest, alarms.

    `width` is in columns; in few of them the table has only what fits.
    """
    parts: list[Text | Table] = [Text("\n".join(look.lines()))]
    key = look.summary.primary_metric or ""
    values = [row.metrics[key] for row in look.rounds if key in row.metrics]
    if len(values) > 1:
        line = sparkline(values, width=max(8, min(60, width - 11)))
        parts.append(Text(f"{key[:9]:10}{line}", style="cyan"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    narrow = width < NARROW
    for name in ("round", "state", "in time", "spent", *(() if narrow else ("seconds",))):
        table.add_column(name, justify="left" if name == "state" else "right")
    for row in look.rounds[-SHOWN:]:
        counts = (f"{row.in_time} of {row.ordered}", credits_text(row.paid_micro))
        seconds = () if narrow else (f"{row.seconds:.2f}",)
        table.add_row(str(row.round), row.state, *counts, *seconds)
    parts += [Text(), table]
    for one in look.alarms[:SHOWN]:
        parts.append(Text(f"! {one.text}", style="bold yellow"))
        parts.append(Text(f"  {one.hint}", style="dim"))
    return Group(*parts)
