"""The coordinator's pure round engine."""
