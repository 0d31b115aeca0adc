"""Tests of the transport, with real brokers and real zeroconf."""
