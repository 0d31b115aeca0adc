"""One device: it learns on its own stream and never sends a sample."""
