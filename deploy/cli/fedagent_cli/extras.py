"""Packages of extras that a command may lack here."""

from importlib.util import find_spec

from fedagent_protocol.extras import how_to_add

from .errors import MissingError

OF_A_COORDINATOR = ("rich",)


def lacking(extra: str, *, who: str) -> MissingError:
    """Return the error of a command that this installation has no packages for."""
    return MissingError(f"{who} needs the extra `{extra}`", how_to_add(extra))


def need_coordinator(who: str) -> None:
    """Raise `MissingError` where the packages of a coordinator are not installed."""
    if any(find_spec(package) is None for package in OF_A_COORDINATOR):
        raise lacking("coordinator", who=who)
