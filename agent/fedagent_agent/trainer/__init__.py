"""The trainer: a resident child process of the agent that does the numeric work."""
