"""What forwards change beside gradients, where a batch is cut.

slots: where state is. join: what parts leave, put together. over_ranks: the same over ranks. forward: the
mechanism, which strategies use.
"""
