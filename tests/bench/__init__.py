"""Measurements against the clock. `make bench` runs them; they are no tests."""
