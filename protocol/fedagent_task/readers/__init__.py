"""Readers for standard dataset files."""
