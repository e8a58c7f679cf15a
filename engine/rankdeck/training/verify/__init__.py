"""The check before the first step: the strategy and one plain device take the same two steps, and what they
compute is compared.

    scope.py       what is compared: fewer samples or layers, the precision, what is switched off
    reference.py   two steps of the plain module on one device, without any strategy
    trial.py       the same two steps under the strategy, over all ranks
    compare.py     what differs by more than rounding
    causes.py      why: how the batch was cut, the forward, a gradient, the optimizer, or state
    check.py       the whole check, as each rank runs it

The trial has a model, an optimizer and a strategy of its own, and is thrown away: the run begins as if there
had been no check.
"""
