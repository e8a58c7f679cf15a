"""Communication patterns between devices and ranks, one file per pattern.

fan_out serves DataParallel. Between ranks: grad_sync (sums of gradients), ring (one of its algorithms),
compress, broadcast (values of rank 0 for all ranks), sync_batch_norm.
"""
