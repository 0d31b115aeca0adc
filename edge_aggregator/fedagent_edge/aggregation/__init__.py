"""Aggregation rules."""
