"""Streaming learners."""
