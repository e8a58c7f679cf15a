"""State other than gradients that forwards change, where a batch is cut.

slots: where state is stored. rank_state: merging of the chunks' states, also over ranks. forward: the
mechanism that strategies use.
"""
