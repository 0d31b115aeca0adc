"""Policies that choose where the global model is aggregated."""
