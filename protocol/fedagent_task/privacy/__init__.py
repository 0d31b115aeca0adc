"""Differential privacy of updates: what it costs, and what is added (docs/privacy.md)."""
