"""Selection policies, one algorithm per file."""
