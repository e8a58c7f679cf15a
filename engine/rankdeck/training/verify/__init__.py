"""The check before the first step: compare two steps under the strategy with two steps on one device.

    scope.py       what is compared: fewer samples or layers, the precision, options that are switched off
    reference.py   two steps of the plain module on one device, without any strategy
    trial.py       the same two steps under the strategy, on all ranks
    compare.py     differences larger than rounding errors
    causes.py      their cause: how the batch was split, the forward, a gradient, the optimizer, or state
    check.py       the whole check, as each rank runs it

The trial has its own model, optimizer and strategy, and is discarded: the run starts as if there had been no
check.
"""
