"""Things found by name, and their parameters: one table for each kind, ours and other people's.

A built-in thing is imported when its name is asked for. A package of someone else adds one by
an entry point; a built-in name wins. What of theirs cannot be imported or made, lacks a
member, raises, or returns something else becomes one `PluginError`, which says whose it is;
errors of ours (`FedagentError`) pass as they are. Parameters are strict: no text counts as a
number, no truth value as a count, and a number is finite.
"""

import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import (
    Any,
    Generic,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from .errors import FedagentError, ParameterError, PluginError, UnknownNameError

T = TypeVar("T")
P = ParamSpec("P")
Parameter = str | int | float | bool | None
Members = Mapping[str, type | None]
"""What a thing must have: its methods with the type they return, None for nothing."""

LARGEST = 1e15
"""No parameter is a larger number: squares and sums of it stay finite."""
_MAX_COUNT = 2**63 - 1
_MAX_SHOWN = 60
_WORDS: Mapping[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: f"a finite number, {LARGEST:g} at most",
    str: "a text",
    type(None): "unset",
}
NEEDS = "needs"
FOREIGN = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?:[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""``package:name``: a distribution, and one of its entry points."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """Factories of one kind by name; a method may raise what `create` raises."""

    kind: str  # what an error calls the thing, e.g. ``policy``
    package: str
    builtin: Mapping[str, str]  # name to ``module:attribute`` below `package`
    group: str = ""  # entry point group of other people's; none if empty
    members: Members = field(default_factory=dict)
    by_package: bool = False
    """Whether a foreign name is ``package:name``: what is missing says what to install."""

    def names(self) -> tuple[str, ...]:
        """Return every known name."""
        return tuple(sorted({*self.builtin, *self._foreign()}))

    def parameters(self, name: str) -> dict[str, Parameter]:
        """Return the parameters of `name` with their defaults (None: required)."""
        return {
            p.name: None if p.default is inspect.Parameter.empty else p.default
            for p in inspect.signature(self.factory(name)).parameters.values()
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        }

    def create(self, name: str, **params: object) -> T:
        """Build the named thing.

        Raises:
            UnknownNameError: Nothing of this kind has the name.
            ParameterError: A parameter is unknown, missing, of a wrong type or out of range.
            PluginError: It is not ours and cannot be made.
        """
        factory = self.factory(name)
        check(name, factory, params)
        if name in self.builtin:
            return factory(**params)
        return self._guarded(self._foreign()[name], factory, params)

    def factory(self, name: str) -> Callable[..., T]:
        """Import what `name` stands for."""
        if name in self.builtin:
            module, _, attribute = self.builtin[name].partition(":")
            return cast(
                "Callable[..., T]", getattr(import_module(f"{self.package}.{module}"), attribute)
            )
        entry = self._foreign().get(name)
        if entry is None:
            raise UnknownNameError(self.kind, name, self.names())
        try:
            factory = entry.load()
        except Exception as error:
            raise self._failed(entry, f"cannot be imported ({_one_line(error)})") from error
        if not callable(factory):
            raise self._failed(entry, "is neither a class nor a function")
        return cast("Callable[..., T]", factory)

    def _foreign(self) -> dict[str, EntryPoint]:
        """Return other people's by name; names that no recipe could hold are none."""
        if not self.group:
            return {}
        if self.by_package:
            found = {f"{_package_of(entry)}:{entry.name}": entry for entry in installed(self.group)}
            return {name: entry for name, entry in found.items() if FOREIGN.fullmatch(name)}
        return {entry.name: entry for entry in installed(self.group) if _NAME.fullmatch(entry.name)}

    def _guarded(
        self, entry: EntryPoint, factory: Callable[..., T], params: Mapping[str, object]
    ) -> T:
        failed = functools.partial(self._failed, entry)
        thing = _guard(factory, failed, "cannot be made")(**params)
        methods: dict[str, Callable[..., object]] = {}
        for member, returns in self.members.items():
            try:
                value = getattr(thing, member)
            except AttributeError as error:
                raise failed(f"has no {member!r}") from error
            except Exception as error:
                raise failed(f"{member!r} failed ({_one_line(error)})") from error
            if member == NEEDS:
                if not isinstance(value, AbstractSet) or not all(isinstance(n, str) for n in value):
                    raise failed(f"{member!r} is not a set of texts")
            elif not callable(value):
                raise failed(f"{member!r} is no method")
            else:
                methods[member] = _guard(value, failed, f"{member!r} failed", returns)
        return cast("T", Guarded(thing, methods))

    def _failed(self, entry: EntryPoint, problem: str) -> PluginError:
        return PluginError(self.kind, entry.name, entry.value, problem)


class Guarded:
    """Someone else's thing; its methods name their package when they fail."""

    def __init__(self, thing: object, methods: Mapping[str, Callable[..., object]]) -> None:
        self.thing = thing
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.thing, name)


def _package_of(entry: EntryPoint) -> str:
    """Return the distribution of an entry point, its name as package indexes spell it."""
    dist = getattr(entry, "dist", None)
    return re.sub(r"[-_.]+", "-", dist.name).lower() if dist is not None else ""


def installed(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group."""
    return tuple(entry_points(group=group))


def _guard(
    call: Callable[P, T],
    failed: Callable[[str], PluginError],
    what: str,
    returns: type | None = None,
) -> Callable[P, T]:
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            result = call(*args, **kwargs)
        except FedagentError:
            raise
        except Exception as error:
            raise failed(f"{what} ({_one_line(error)})") from error
        if returns is not None and not isinstance(result, returns):
            raise failed(f"{what}: it returns {type(result).__name__}, not {returns.__name__}")
        return result

    return guarded


def _one_line(error: Exception) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def require(name: str, parameter: str, value: object, holds: bool, rule: str) -> None:
    """Raise `ParameterError`, which says that the value must be `rule`, unless it `holds`."""
    if not holds:
        raise ParameterError(name, parameter, f"is {_shown(value)}: must be {rule}")


def whole(name: str, parameter: str, value: int, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`, or raise `ParameterError`."""
    holds = _fits(value, int) and least <= value <= most
    require(name, parameter, value, holds, f"a whole number from {least} to {most}")
    return value


def number(
    name: str, parameter: str, value: float, *, least: float | None = None, most: float = 1e9
) -> float:
    """Return a finite number above 0 or from `least`, up to `most`, or raise `ParameterError`."""
    lower = "above 0" if least is None else f"from {least:g}"
    holds = (
        _fits(value, float) and value <= most and (value > 0 if least is None else value >= least)
    )
    require(name, parameter, value, holds, f"{lower} up to {most:g}")
    return float(value)


def check(name: str, factory: Callable[..., object], params: Mapping[str, object]) -> None:
    """Refuse arguments that a factory does not know, lacks, or that are of a wrong type.

    What it does not annotate may be anything; `name` is for the error.

    Raises:
        ParameterError: Of the first one that is wrong.
    """
    known = inspect.signature(factory).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for parameter in params:
        if parameter not in known and not open_ended:
            has = ", ".join(known) or "none"
            raise ParameterError(name, parameter, f"is unknown; there are: {has}")
    for parameter, spec in known.items():
        if spec.kind in (spec.VAR_KEYWORD, spec.VAR_POSITIONAL) or parameter in params:
            continue
        if spec.default is spec.empty:
            raise ParameterError(name, parameter, "is required")
    hints = _hints(factory)
    for parameter, value in params.items():
        if parameter in known and parameter in hints:
            hint = hints[parameter]
            require(name, parameter, value, _fits(value, hint), _wanted(hint))


def _hints(factory: Callable[..., object]) -> Mapping[str, object]:
    source = factory.__init__ if inspect.isclass(factory) else factory
    try:
        return get_type_hints(source)
    except (NameError, AttributeError, TypeError):
        return {}


def _fits(value: object, wanted: object) -> bool:
    """Return whether a value is of an annotated type; what is not understood fits."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        if not isinstance(value, list | tuple):
            return False
        return not inner or all(_fits(one, inner[0]) for one in value)
    if wanted is int:
        return type(value) is int and abs(value) <= _MAX_COUNT
    if wanted is float:
        return type(value) in (int, float) and abs(cast("float", value)) <= LARGEST
    try:
        return not inspect.isclass(wanted) or isinstance(value, wanted)
    except TypeError:
        return True


def _wanted(annotation: object) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(one) for one in inner)
    if annotation in _WORDS:
        return _WORDS[annotation]
    if origin is not None:
        return f"a list, each {_wanted(inner[0])}" if inner else "a list"
    return f"a {getattr(annotation, '__name__', annotation)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
