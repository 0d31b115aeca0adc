"""Convex models as plain functions on arrays."""
