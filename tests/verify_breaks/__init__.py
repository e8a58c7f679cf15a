"""Deliberate breaks, one line each, that the check before the first step ought to find."""
