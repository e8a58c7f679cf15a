"""Strategies: placement of tensors, forward and backward, and gradient synchronization. README.md gives the
reading order."""
