"""Strategies: where tensors live, forward and backward, and how gradients meet. README.md gives the reading
order.
"""
