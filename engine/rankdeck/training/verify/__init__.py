"""The check before the first step: compare two steps under the strategy with two steps on one device.

    scope.py       choose what is compared: number of samples and layers, precision, options
    reference.py   take two steps of the plain module on one device, without any strategy
    trial.py       take the same two steps under the strategy, on all ranks
    compare.py     find differences larger than rounding errors
    causes.py      find the cause of differences: batch split, forward, gradient, optimizer or state
    check.py       run the whole check on each rank

The trial has its own model, optimizer and strategy, and is discarded: the run starts as if there had been no
check.
"""
