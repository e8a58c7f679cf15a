"""Handle state (not gradients) that forward passes change while a batch is processed in chunks.

slots: where state is stored. rank_state: merging the chunks' states, including across ranks. forward: the
mechanism that strategies use.
"""
