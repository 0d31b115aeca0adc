"""Things found by name: policies, solvers and placements, ours and users' own.

Built-in names map to ``module:attribute`` and are imported when asked for, so
that a policy with heavy imports costs nothing until it is used. Users add their
own through an entry point group of their package; a built-in name always wins.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from .errors import ParameterError, UnknownNameError

T = TypeVar("T")
Parameter = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """Factories of one kind by name.

    Attributes:
        kind: What an error calls the thing, e.g. ``policy``.
        group: Entry point group of users' own.
        builtin: Name to ``module:attribute``.
    """

    kind: str
    group: str
    builtin: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        """Return every known name, sorted."""
        return tuple(sorted({*self.builtin, *self._foreign()}))

    def parameters(self, name: str) -> dict[str, Parameter]:
        """Return the parameters of `name` with their defaults (None: required).

        Raises:
            UnknownNameError: Nothing of this kind has the name.
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
            ParameterError: A parameter is unknown, missing or out of range.
        """
        factory = self._factory(name)
        known = inspect.signature(factory).parameters
        open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
        for parameter in params:
            if parameter not in known and not open_ended:
                has = ", ".join(known) or "none"
                raise ParameterError(name, parameter, f"is unknown; there are: {has}")
        for parameter, spec in known.items():
            required = spec.default is inspect.Parameter.empty
            if required and parameter not in params and spec.kind is spec.KEYWORD_ONLY:
                raise ParameterError(name, parameter, "is required")
        return factory(**params)

    def _factory(self, name: str) -> Callable[..., T]:
        """Import what `name` stands for."""
        if name in self.builtin:
            module, _, attribute = self.builtin[name].partition(":")
            return cast("Callable[..., T]", getattr(import_module(module), attribute))
        foreign = self._foreign()
        if name not in foreign:
            raise UnknownNameError(self.kind, name, self.names())
        return cast("Callable[..., T]", foreign[name].load())

    def _foreign(self) -> dict[str, EntryPoint]:
        """Return users' own entry points by name."""
        return {entry.name: entry for entry in entry_points(group=self.group)}
