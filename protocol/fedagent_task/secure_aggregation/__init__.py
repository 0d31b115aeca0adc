"""Sums of updates that nobody sees one by one (docs/privacy.md, ADR 31)."""
