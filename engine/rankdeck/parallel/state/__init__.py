"""State other than gradients that forwards change, for batches that are split.

slots: where state is stored. rank_state: merging the chunks' states, including across ranks. forward: the
mechanism that strategies use.
"""
