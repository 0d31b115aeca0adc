"""The wire between agents, edges and coordinator."""
