"""Whether an exception comes of the check, or is the run's own failure.

The check runs a person's code as the run never does: over few samples, in another precision, on one device.
What it raises for that it raises again when asked again, and then there is nothing to compare. What it does
not raise again could have struck any step of the run, and ends it here as it would there. Read check.py next.
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
    """The check itself leaves off."""


class UncheckableError(Exception):
    """The person's code raises `error` whenever it is run as the check runs it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def run_with_retry(compute: Callable[[], Value], budget: CheckBudget) -> Value:
    """What `compute` returns at once; the time until it raises is not of the budget.

    Raises: UnfitError for what it raises twice, and where the whole does not fit on a device; CheckStopError;
    what it raises only once.
    """
    spent_s = budget.spent_s
    try:
        return compute()
    except CheckStopError:
        raise
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
    """What is told of such an error."""
    why = f"{type(error).__name__}: {error_text(error)}".splitlines()[0].rstrip(": .")
    return phrase("The model did not train on one device by itself: {why}.", why=why)
