"""Streams under a long-term budget (BAS): iteration control and placement side by side."""
