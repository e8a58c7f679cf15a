"""Weights cut into one slice per rank, gathered block by block while they are needed.

Reading order: meta_init (a model without memory, and its initial weights), blocks (torch's fully_shard over
the blocks of any model, what it sends, and blocks that cannot be groups of their own), used_weights (weights
that some ranks do not use).
"""
