"""Things found by name: policies, solvers and placements, ours and users' own.

Built-in names map to ``module:attribute`` and are imported when asked for, so
that a policy with heavy imports costs nothing until it is used. Users add their
own through an entry point group of their package; a built-in name always wins.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from .errors import UnknownNameError
from .parameters import check
from .plugins import Members, build, load, named_well

T = TypeVar("T")
Parameter = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """Factories of one kind by name.

    Attributes:
        kind: What an error calls the thing, e.g. ``policy``.
        group: Entry point group of users' own.
        builtin: Name to ``module:attribute``.
        members: What a thing must have, for users' own.
    """

    kind: str
    group: str
    builtin: Mapping[str, str]
    members: Members = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Return every known name, sorted."""
        return tuple(sorted({*self.builtin, *self._foreign()}))

    def parameters(self, name: str) -> dict[str, Parameter]:
        """Return the parameters of `name` with their defaults (None: required).

        Raises:
            UnknownNameError: Nothing of this kind has the name.
            PluginError: A user's own cannot be imported.
        """
        return {
            p.name: None if p.default is inspect.Parameter.empty else p.default
            for p in inspect.signature(self._factory(name)).parameters.values()
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        }

    def create(self, name: str, **params: object) -> T:
        """Build the named thing.

        Raises:
            UnknownNameError: Nothing of this kind has the name.
            ParameterError: A parameter is unknown, missing, of a wrong type or out of range.
            PluginError: A user's own cannot be made.
        """
        factory = self._factory(name)
        check(name, factory, params)
        if name in self.builtin:
            return factory(**params)
        return build(self.kind, self._foreign()[name], factory, params, self.members)

    def _factory(self, name: str) -> Callable[..., T]:
        """Import what `name` stands for."""
        if name in self.builtin:
            module, _, attribute = self.builtin[name].partition(":")
            return cast("Callable[..., T]", getattr(import_module(module), attribute))
        foreign = self._foreign()
        if name not in foreign:
            raise UnknownNameError(self.kind, name, self.names())
        return cast("Callable[..., T]", load(self.kind, foreign[name]))

    def _foreign(self) -> dict[str, EntryPoint]:
        """Return users' own entry points by name; names that no recipe could hold are none."""
        return {
            entry.name: entry for entry in entry_points(group=self.group) if named_well(entry.name)
        }
