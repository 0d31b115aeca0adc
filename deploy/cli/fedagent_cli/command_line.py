"""Commands from annotated functions, on click: its options stand where the parameters do.

Why not typer: it brings rich, pygments and pydantic, 24 MB on every device (ADR 11).
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import click
from click.exceptions import Exit

from .errors import UnreadEnd

if TYPE_CHECKING:
    from fedagent_protocol.option import Declared

__all__ = ["Argument", "CommandGroup", "Exit", "Option"]

_WIDTH = 100
_WHOLE = 300
"""A command's first sentence is shown whole, over two lines if need be."""
MOST = 2.0**53
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class _Parameter:
    """What stands in a parameter's annotation; `min` and `max` bound a number."""

    names: tuple[str, ...] = ()
    help: str = ""
    metavar: str | None = None
    show_default: str | bool = True
    min: float | None = None
    max: float | None = None
    panel: str = "Options"
    exists: bool = False
    dir_okay: bool = True
    readable: bool = True


def Option(*names: str, **details: Any) -> _Parameter:  # noqa: N802 - reads like a type in an annotation
    """Declare an option; see `_Parameter`."""
    return _Parameter(names=names, **details)


def Argument(**details: Any) -> _Parameter:  # noqa: N802 - reads like a type in an annotation
    """Declare a positional argument; see `_Parameter`."""
    return _Parameter(panel="Arguments", **details)


class CommandGroup:
    """A group of commands; `group` is the same for click."""

    def __init__(
        self,
        name: str | None = None,
        *,
        help: str | None = None,  # noqa: A002 - click's own word
        epilog: str | None = None,
        no_args_is_help: bool = False,
    ) -> None:
        self.group = _Group(name, help=help, epilog=epilog, no_args_is_help=no_args_is_help)

    def __call__(self) -> object:
        """Run the command that the program's arguments name; return its exit code, if any.

        Raises:
            ClickException: The arguments do not fit.
        """
        return self.group.main(
            prog_name=self.group.name, standalone_mode=False, max_content_width=_WIDTH
        )

    def command(
        self,
        name: str | None = None,
        *,
        panel: str = "",
        epilog: str | None = None,
        options: "Callable[[], Iterable[Declared]]" = tuple,
    ) -> Callable[[Command], Command]:
        """Return a decorator that adds a function as a command.

        `options` are what its ``**`` takes; they are made when the command is used.
        """

        def add(function: Command) -> Command:
            made = _Command(
                name or function.__name__.replace("_", "-"),
                params=_parameters(function),
                callback=_converted(function),
                help=inspect.getdoc(function),
                epilog=epilog,
            )
            made.panel = panel or made.panel
            made.later = options
            self.group.add_command(made)
            return function

        return add

    def default(self) -> Callable[[Command], Command]:
        """Return a decorator: the function is what the group's own name does without a command."""

        def add(function: Command) -> Command:
            called = _converted(function)

            def call(**given: Any) -> Any:
                alone = click.get_current_context().invoked_subcommand is None
                return called(**given) if alone else None

            self.group.params = [*_parameters(function), *self.group.params]
            self.group.callback, self.group.invoke_without_command = call, True
            self.group.help = inspect.getdoc(function)
            return function

        return add

    def add_group(self, other: "CommandGroup", *, panel: str = "") -> None:
        """Mount another group below this one."""
        other.group.panel = panel or other.group.panel
        self.group.add_command(other.group)


class _InPanels(click.Command):
    """Lists its parameters, and the commands below it, under their headings."""

    panel = "Commands"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [
            (getattr(param, "panel", "Options"), record)
            for param in self.get_params(ctx)
            if (record := _record(param, ctx)) is not None
        ]
        _write(formatter, found)
        if isinstance(self, _Group):
            self.format_commands(ctx, formatter)


class _Command(_InPanels):
    """One command."""

    later: "Callable[[], Iterable[Declared]]" = tuple

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, from now on with those that a configuration declares."""
        if declared := [_declared_option(one) for one in self.later()]:
            self.params = sorted([*declared, *self.params], key=_rank)
            self.later = tuple
        return super().get_params(ctx)


class _Group(_InPanels, click.Group):
    """A group of commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [
            (getattr(command, "panel", "Commands"), (name, command.get_short_help_str(_WHOLE)))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        _write(formatter, found)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were added."""
        del ctx
        return list(self.commands)


class _Option(click.Option):
    panel = "Options"


class _Argument(click.Argument):
    panel = "Arguments"
    text = ""

    def make_metavar(self, ctx: click.Context) -> str:
        """Return its name, in brackets if it may be left out: click leaves a given name bare."""
        bare = self.metavar is not None and not self.required
        return f"[{self.metavar}]" if bare else super().make_metavar(ctx)


def _rank(param: click.Parameter) -> int:
    return {"Arguments": 0, "Options": 1}.get(getattr(param, "panel", ""), 2)


def _record(param: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    """Return the line of a parameter; older clicks know none for arguments."""
    if isinstance(param, _Argument):
        return param.make_metavar(ctx), param.text
    return param.get_help_record(ctx)


def _write(formatter: click.HelpFormatter, found: Sequence[tuple[str, tuple[str, str]]]) -> None:
    for panel in dict.fromkeys(panel for panel, _ in found):
        with formatter.section(panel):
            formatter.write_dl([record for its, record in found if its == panel])


def _parameters(function: Callable[..., Any]) -> list[click.Parameter]:
    return [_parameter(one.name, one.default, one.annotation) for one in _annotated(function)]


def _annotated(function: Callable[..., Any]) -> list[inspect.Parameter]:
    found = inspect.signature(function).parameters.values()
    return [one for one in found if one.kind is not one.VAR_KEYWORD]


def _parameter(name: str, default: object, annotation: object) -> click.Parameter:
    _, marker = get_args(annotation)
    kind, many = _kind_of(annotation)
    if isinstance(default, Enum):
        default = str(default.value)
    if marker.panel != "Arguments":
        return _option(name, kind, marker, default=default, many=many)
    required = default is inspect.Parameter.empty
    shown: dict[str, Any] = {} if required else {"default": default}
    argument = _Argument(
        [name],
        type=_click_type(kind, marker),
        metavar=marker.metavar,
        nargs=-1 if many else 1,
        required=required,
        **shown,
    )
    default_text = marker.show_default if isinstance(marker.show_default, str) else ""
    argument.text = f"{marker.help}  [default: ({default_text})]" if default_text else marker.help
    return argument


def _declared_option(one: "Declared") -> "_Option":
    """Return the option of a configuration's field; not given, it is None or empty."""
    marker = _Parameter(
        names=(one.name,),
        help=one.option.help,
        metavar=one.option.metavar,
        show_default=one.shown_default or True,
        min=one.option.at_least,
        panel=one.panel,
    )
    plain = one.kind if one.kind in (bool, int, float) else str
    kind = Path if one.option.path else plain
    return _option(one.parameter, kind, marker, default=None, many=one.many)


def _option(name: str, kind: Any, marker: _Parameter, *, default: object, many: bool) -> "_Option":
    names = marker.names or (f"--{name.replace('_', '-')}",)
    flag = kind is bool
    required = default is inspect.Parameter.empty
    shown: dict[str, Any] = {} if required else {"default": default}
    option = _Option(
        [name, *names],
        help=marker.help,
        required=required,
        show_default=marker.show_default if not (flag and marker.show_default is True) else False,
        multiple=many,
        metavar=marker.metavar,
        **shown,
        **({"is_flag": True} if flag else {"type": _click_type(kind, marker)}),
    )
    option.panel = marker.panel
    return option


def _kind_of(annotation: object) -> tuple[Any, bool]:
    """Return the type of ``Annotated[T | None, …]``, and whether it is a list of them."""
    kind = get_args(annotation)[0]
    optional = [one for one in get_args(kind) if one is not NoneType]
    if NoneType in get_args(kind):
        (kind,) = optional
    return (get_args(kind)[0], True) if get_origin(kind) is list else (kind, False)


def _click_type(
    kind: Any, marker: _Parameter
) -> Any:  # click's own base class is generic in some releases
    if kind is Path:
        wanted = {"exists": marker.exists, "dir_okay": marker.dir_okay, "readable": marker.readable}
        return click.Path(**wanted, path_type=Path)
    if issubclass(kind, Enum):
        return click.Choice([str(one.value) for one in kind])
    bounds = {"min": marker.min, "max": marker.max}
    if kind in {int, float}:
        made = _Number if kind is float else _Whole
        return made(**bounds)  # type: ignore[arg-type]  # whole bounds of whole numbers
    return click.types.convert_type(kind)


class _Bounded:
    """A number that databases and clocks can hold: finite, and below 2^53 either way."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        found = super().convert(value, param, ctx)  # type: ignore[misc]  # of the range beside it
        if not abs(found) < MOST:
            self.fail(f"{value} is no number below 2^53.", param, ctx)  # type: ignore[attr-defined]
        return found

    def _describe_range(self) -> str:
        return super()._describe_range() if self.min is not None or self.max is not None else ""  # type: ignore[misc, attr-defined]


class _Whole(_Bounded, click.IntRange):
    """A whole number of an option."""


class _Number(_Bounded, click.FloatRange):
    """A number of an option."""


def _converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as click calls it: enums by their value, lists or None."""
    kinds = {one.name: _kind_of(one.annotation) for one in _annotated(function)}

    def call(**given: Any) -> Any:
        for name, (kind, many) in kinds.items():
            if many:
                given[name] = list(given[name] or ()) or None
            elif issubclass(kind, Enum) and given[name] is not None:
                given[name] = kind(given[name])
        try:
            return function(**given)
        except BrokenPipeError as error:
            raise UnreadEnd from error  # click would make an exit with 1 of it

    return call
