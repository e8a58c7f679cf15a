"""Weights sharded into one slice per rank, and gathered block by block while they are needed.

Reading order: meta_init (a model on the meta device, and its initial weights), blocks (torch's fully_shard on
the blocks of any model, the bytes that it sends, and blocks that cannot be groups of their own), used_weights
(weights that some ranks do not use).
"""
