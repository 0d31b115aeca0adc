"""Clients that decide among neighbours who trains next (mode ``peers``, docs/democratized.md)."""
