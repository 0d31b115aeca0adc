"""Virtual time: the same cores on a simulated clock and network."""
