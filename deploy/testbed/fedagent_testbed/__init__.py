"""Testbeds: whole federations of real processes, or in virtual time; studies of policies."""
