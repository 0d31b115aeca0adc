"""Other people's systems, run beside ours so that a ratio comes from one run."""
