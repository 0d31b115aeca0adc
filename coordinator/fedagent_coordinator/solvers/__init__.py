"""Solvers of the assignment problem."""
