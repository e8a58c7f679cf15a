"""Handle state (not gradients) that forward passes change while a batch is processed in chunks.

slots finds where state is stored, rank_state merges the chunks' states (also across ranks), and forward
provides the classes that strategies use.
"""
