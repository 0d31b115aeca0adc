"""Testbeds: whole federations of real processes, or in virtual time; studies of policies."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .study import Comparison, TestbedRecipe, compare, load_recipe

__all__ = ["Comparison", "TestbedRecipe", "compare", "load_recipe"]


def __getattr__(name: str) -> object:
    """Load the studies when they are asked for: a demo needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import study  # noqa: PLC0415 - half a second

    value: object = getattr(study, name)
    return value
