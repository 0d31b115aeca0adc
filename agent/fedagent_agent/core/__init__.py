"""The agent's pure state machine."""
