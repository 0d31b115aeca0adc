"""Testbeds: whole federations of real processes, or in virtual time; studies of policies."""

from .study import Comparison, TestbedRecipe, compare, load_recipe

__all__ = ["Comparison", "TestbedRecipe", "compare", "load_recipe"]
