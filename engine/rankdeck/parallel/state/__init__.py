"""Handling of the state (other than gradients) that forwards change while a batch is processed in chunks.

slots: where state is stored. rank_state: merging the chunks' states, including across ranks. forward: the
mechanism that strategies use.
"""
