"""Things found by name: one table for each kind, ours and other people's alike.

A built-in thing is imported when its name is asked for. A package of someone else adds one by
an entry point; a built-in name wins. What of theirs cannot be imported or made, lacks a
member, raises, or returns something else becomes one `PluginError`, which says whose it is;
errors of ours (`FedagentError`) pass as they are.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from .errors import FedagentError, PluginError, UnknownNameError
from .parameters import check

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
P = ParamSpec("P")
Parameter = str | int | float | bool | None
Members = Mapping[str, type | None]
"""What a thing must have: its methods with the type they return, None for nothing."""

NEEDS = "needs"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """Factories of one kind by name; a method may raise what is said of `create`."""

    kind: str  # what an error calls the thing, e.g. ``policy``
    package: str
    builtin: Mapping[str, str]  # name to ``module:attribute`` below `package`
    group: str = ""  # entry point group of other people's; none if empty
    members: Members = field(default_factory=dict)

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

    def _foreign(self) -> dict[str, "EntryPoint"]:
        """Return other people's by name; names that no recipe could hold are none."""
        if not self.group:
            return {}
        return {entry.name: entry for entry in installed(self.group) if _NAME.fullmatch(entry.name)}

    def _guarded(
        self, entry: "EntryPoint", factory: Callable[..., T], params: Mapping[str, object]
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

    def _failed(self, entry: "EntryPoint", problem: str) -> PluginError:
        return PluginError(self.kind, entry.name, entry.value, problem)


class Guarded:
    """Someone else's thing; its methods name their package when they fail."""

    def __init__(self, thing: object, methods: Mapping[str, Callable[..., object]]) -> None:
        self.thing = thing
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.thing, name)


def installed(group: str) -> "tuple[EntryPoint, ...]":
    """Return the entry points of a group."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - megabytes of a device's memory

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
