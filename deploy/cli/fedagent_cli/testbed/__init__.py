"""`fedagent testbed`: policies in virtual time, side by side."""
