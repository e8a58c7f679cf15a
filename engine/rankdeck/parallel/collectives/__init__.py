"""How tensors travel between devices and ranks: one file per pattern.

fan_out is DataParallel's. Between ranks: grad_sync (how gradients meet), ring (one of its algorithms),
compress, broadcast (what all take from rank 0), sync_batch_norm.
"""
