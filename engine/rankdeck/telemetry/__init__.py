"""Readings of devices: what is there and what it is doing now."""
