"""The live page, and the same data under `/api`: a read-only view beside the round engine."""
