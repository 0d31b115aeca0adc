"""Recipes: every key and its checks, as text and in files, and the task they give devices."""
