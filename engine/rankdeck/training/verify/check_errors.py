"""Decide whether an exception is caused by the check, or is the run's own failure.

The check runs the user's code under conditions that the run itself never uses: few samples, another
precision, one device. An exception caused by these conditions occurs again on a second try; nothing can then
be compared. An exception that does not recur could have occurred in any step of the run, so it ends the run
even if it occurs in the check. Read check.py next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from rankdeck.base.phrases import Phrase, phrase
from rankdeck.diagnose.exceptions import error_text
from rankdeck.training.verify.budget import CheckBudget

Value = TypeVar("Value")


class CheckStopError(Exception):
    """Raised by the check itself to stop the comparison."""


class UncheckableError(Exception):
    """The user's code always raises `error` when it runs under the conditions of the check."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def run_with_retry(compute: Callable[[], Value], budget: CheckBudget) -> Value:
    """Return the result of `compute`. If it raises, call it once more, only to see whether the exception
    recurs; the time of the first call then does not count.

    Raises: UncheckableError if both calls raise exceptions of the same type, or if the model does not fit on
    a device; CheckStopError if the first call raises it; otherwise, the first call's exception.
    """
    spent_s = budget.spent_s
    try:
        return compute()
    except CheckStopError:
        raise
    # A second try would need as much memory.
    except torch.OutOfMemoryError as error:
        raise UncheckableError(error) from error
    except Exception as error:
        first = error
    budget.discard_since(spent_s)
    try:
        compute()
    except CheckStopError:
        raise UncheckableError(first) from first
    except Exception as again:
        if type(again) is type(first):
            raise UncheckableError(first) from first
    raise first


def training_error_text(error: Exception) -> Phrase:
    """Return the message for an exception that the model raised in the check."""
    why = f"{type(error).__name__}: {error_text(error)}".splitlines()[0].rstrip(": .")
    return phrase("The model could not be trained on one device: {why}.", why=why)
