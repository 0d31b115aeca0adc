"""Measured links, prices and devices, for worlds that are not made up."""
