"""Describe why a checkpoint could not be written or read."""

from __future__ import annotations

from dataclasses import dataclass

from rankdeck.base.phrases import phrase
from rankdeck.checkpoint_files import UNSAVABLE_STATE, CheckpointError

_MAX_TEXT_LENGTH = 300


@dataclass(frozen=True)
class SaveFailure:
    """Reason why a checkpoint could not be written.

    The cause is the disk (`is_disk`) or state of the model or the optimizer (`is_state`). If neither is set,
    the cause is a tensor that no file can store.
    """

    reason: str
    is_disk: bool
    is_state: bool
    is_missing: bool
    """Whether a file or folder did not exist, as happens while a run's folder is being moved."""


class FolderMissingError(CheckpointError):
    """Error for a checkpoint whose folder was deleted or moved."""


def classify_failure(error: BaseException) -> SaveFailure:
    is_state, is_missing = isinstance(error, CheckpointError), isinstance(error, FileNotFoundError)
    return SaveFailure(failure_text(error), isinstance(error, OSError), is_state, is_missing)


def save_error(step: int | None, failure: SaveFailure) -> CheckpointError:
    """Return the error for a failure; `step` is None in a dry run."""
    why, is_disk = failure.reason, failure.is_disk
    message = phrase("A checkpoint of this run could not be written: {why}.", why=why)
    if step is not None:
        message = phrase("The checkpoint of step {step} could not be written: {why}.", step=step, why=why)
    advice = phrase("Set train.checkpoint_every = 0 to train without checkpoints.")
    if failure.is_state:
        advice = phrase(
            "Store only numbers, strings, tensors, and lists and dictionaries of them in that state."
        )
    elif is_disk:
        advice = phrase(
            "Training continues, and the last good checkpoint is kept. If the disk is full, free some space."
        )
    # After a client's request for a checkpoint, launch/control.py waits for checkpoint-not-saved.
    of_disk = "checkpoint-would-fail" if step is None else "checkpoint-not-saved"
    kind = FolderMissingError if failure.is_missing else CheckpointError
    return kind(message, code=of_disk if is_disk else UNSAVABLE_STATE, advice=advice)


def failure_text(error: BaseException) -> str:
    """Return the cause of an error on one line."""
    if isinstance(error, CheckpointError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text[:_MAX_TEXT_LENGTH]}" if text else type(error).__name__
