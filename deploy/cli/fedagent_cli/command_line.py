"""What is added to click: commands that are loaded when they are called, headings, numbers.

Why not typer: it brings rich, pygments and pydantic, 24 MB on every device.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.exceptions import Exit

from .errors import UNREAD

MOST = 2**53
"""What databases and clocks can hold of a number."""


class Lazy(NamedTuple):
    """A command of a module that is loaded when the command is called or explained."""

    panel: str  # heading in `--help`; none hides it
    place: str  # MODULE:NAME below this package
    help: str

    def load(self) -> click.Command:
        """Return the command."""
        module, _, name = self.place.partition(":")
        found = getattr(import_module(f"{__package__}.{module}"), name)
        assert isinstance(found, click.Command)
        return found


class Group(click.Group):
    """A group that lists its commands under headings, in their own order.

    `lazy` are commands to be loaded; `default` is the one that the group's own name stands for.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, Lazy] | None = None,
        default: str | None = None,
        **details: Any,
    ) -> None:
        super().__init__(*args, **details)
        self._lazy, self._default = dict(lazy or {}), default
        self.no_args_is_help = self.no_args_is_help and default is None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Return the names in the order in which they were added."""
        return [*self._lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, loaded."""
        found = self._lazy.get(cmd_name)
        return super().get_command(ctx, cmd_name) if found is None else found.load()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command where none is named."""
        named = args and (args[0][:1] != "-" or args[0] in ctx.help_option_names)
        if self._default and not named:
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would make an exit with 1 of an output that nobody reads."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise Exit(UNREAD) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write a list of commands below each heading."""
        lines = [(one.panel, (name, one.help)) for name, one in self._lazy.items() if one.panel]
        lines += [
            ("Commands", (name, one.get_short_help_str(300))) for name, one in self.commands.items()
        ]
        for panel in dict.fromkeys(panel for panel, _ in lines):
            with formatter.section(panel):
                formatter.write_dl([line for its, line in lines if its == panel])


class Number(click.ParamType):  # type: ignore[type-arg]  # generic in some releases alone
    """A finite number between bounds, at most 2^53 either way."""

    def __init__(
        self,
        kind: type[int] | type[float],
        *,
        min: float = -MOST,  # noqa: A002 - click's own words
        max: float = MOST,  # noqa: A002 - click's own words
    ) -> None:
        self._kind, self._min, self._max = kind, min, max
        self.name = "integer" if kind is int else "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        """Return the number; a usage error if there is none, or it is out of bounds."""
        try:
            found = self._kind(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        if not self._min <= found <= self._max:
            high = f" and at most {self._max:g}" if self._max < MOST else ", below 2^53"
            self.fail(f"{value} is out of range: at least {self._min:g}{high}.", param, ctx)
        return found
