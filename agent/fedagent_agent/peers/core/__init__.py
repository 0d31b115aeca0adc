"""The pure part: beliefs, gossip, and what neighbours exchange about them; no clock, no I/O."""
