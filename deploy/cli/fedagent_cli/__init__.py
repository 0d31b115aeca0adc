"""The `fedagent` command: one group per role, and what a person reads."""
