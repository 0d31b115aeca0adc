"""Users' own policies, solvers and placements: what of theirs fails is named as theirs.

An entry point may name what is not there, its constructor or a method may raise, or an
attribute may be missing. All of that becomes one `PluginError`, which says whose it is;
errors of the package's own (`PolicyError`) pass as they are.
"""

import functools
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from importlib.metadata import EntryPoint
from typing import ParamSpec, TypeVar, cast

from .errors import PluginError, PolicyError

T = TypeVar("T")
P = ParamSpec("P")
Members = Mapping[str, type | None]
"""What a thing must have: its methods with the type they return, None for nothing."""

NEEDS = "needs"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def named_well(name: str) -> bool:
    """Return whether commands, recipes and file names can hold a name."""
    return _NAME.fullmatch(name) is not None


def load(kind: str, entry: EntryPoint) -> Callable[..., object]:
    """Import what an entry point names.

    Raises:
        PluginError: It cannot be imported, or is nothing that can be called.
    """
    failed = functools.partial(PluginError, kind, entry.name, entry.value)
    try:
        factory = entry.load()
    except Exception as error:
        raise failed(f"cannot be imported ({one_line(error)})") from error
    if not callable(factory):
        raise failed("is neither a class nor a function")
    return cast("Callable[..., object]", factory)


def build(
    kind: str,
    entry: EntryPoint,
    factory: Callable[..., T],
    params: Mapping[str, object],
    members: Members,
) -> T:
    """Make a thing, check that it has its members, and guard its methods.

    Raises:
        PluginError: It cannot be made, or lacks a member.
    """
    failed = functools.partial(PluginError, kind, entry.name, entry.value)
    thing = _guarded(factory, failed, "cannot be made")(**params)
    for member in members:
        try:
            value = getattr(thing, member)
        except AttributeError as error:
            raise failed(f"has no {member!r}") from error
        except Exception as error:
            raise failed(f"{member!r} failed ({one_line(error)})") from error
        if member == NEEDS:
            if not isinstance(value, AbstractSet) or not all(isinstance(one, str) for one in value):
                raise failed(f"{member!r} is not a set of texts")
        elif not callable(value):
            raise failed(f"{member!r} is no method")
    _guard(thing, failed, members)
    return thing


def one_line(error: Exception) -> str:
    """Return an error in one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _guard(thing: object, failed: Callable[[str], PluginError], members: Members) -> None:
    """Give the thing a subclass of its class whose methods name it when they raise."""
    own = type(thing)
    methods = {
        member: _guarded(getattr(own, member), failed, f"{member!r} failed", returns)
        for member, returns in members.items()
        if callable(getattr(own, member, None))
    }
    named = {"__slots__": (), "__module__": own.__module__, "__doc__": own.__doc__}
    # A class that cannot have subclasses stays as it is.
    try:
        thing.__class__ = type(own.__name__, (own,), {**named, **methods})
    except TypeError:
        return


def _guarded(
    call: Callable[P, T],
    failed: Callable[[str], PluginError],
    what: str,
    returns: type | None = None,
) -> Callable[P, T]:
    """Return the same call with its errors and results checked."""

    @functools.wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            result = call(*args, **kwargs)
        except PolicyError:
            raise
        except Exception as error:
            raise failed(f"{what} ({one_line(error)})") from error
        if returns is not None and not isinstance(result, returns):
            raise failed(f"{what}: it returns {type(result).__name__}, not {returns.__name__}")
        return result

    return guarded
