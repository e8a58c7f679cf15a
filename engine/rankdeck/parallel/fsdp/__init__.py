"""Weights cut into one slice per rank, put together block by block while they are needed.

Reading order: blank (a model without memory, and its first weights), blocks (torch's fully_shard over the
blocks of any model, and what it sends), reach (blocks that cannot be groups of their own), used (weights that
some ranks do not use).
"""
