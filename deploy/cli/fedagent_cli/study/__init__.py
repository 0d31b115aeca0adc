"""Commands that study policies."""
