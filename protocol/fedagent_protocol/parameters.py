"""Parameters by name: whether they fit a constructor, and the ranges that it asks for.

Strict: no text counts as a number, no truth value as a count, and a number is finite.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence

from .errors import ParameterError

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
        return typing.get_type_hints(source)
    except (NameError, AttributeError, TypeError):
        return {}


def _fits(value: object, wanted: object) -> bool:
    """Return whether a value is of an annotated type; what is not understood fits."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        if not isinstance(value, list | tuple):
            return False
        return not inner or all(_fits(one, inner[0]) for one in value)
    if wanted is int:
        return type(value) is int and abs(value) <= _MAX_COUNT
    if wanted is float:
        return type(value) in (int, float) and abs(typing.cast("float", value)) <= LARGEST
    try:
        return not inspect.isclass(wanted) or isinstance(value, wanted)
    except TypeError:
        return True


def _wanted(annotation: object) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_wanted(one) for one in inner)
    if annotation in _WORDS:
        return _WORDS[annotation]
    if origin is not None:
        return f"a list, each {_wanted(inner[0])}" if inner else "a list"
    return f"a {getattr(annotation, '__name__', annotation)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
