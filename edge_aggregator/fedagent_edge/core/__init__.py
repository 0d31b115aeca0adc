"""The edge's pure state machine."""
