"""The fedagent command."""
