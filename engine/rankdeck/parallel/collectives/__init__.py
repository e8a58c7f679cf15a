"""Communication patterns between devices and ranks, one file per pattern.

fan_out serves DataParallel. The patterns between ranks are grad_sync (sums of gradients), ring (an algorithm
of grad_sync), compress, broadcast (values of rank 0 for all ranks) and sync_batch_norm.
"""
