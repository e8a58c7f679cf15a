"""Check whether a run can be resumed.

The run must have ended, with a complete checkpoint and something left to do (even if only saving its
weights). Its folder must not contain links to files elsewhere.
"""

from __future__ import annotations

import shlex
from contextlib import suppress

from rankdeck import run_dir
from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.checkpoint_files import newest_intact
from rankdeck.config import RunConfig
from rankdeck.config.naming import title_of
from rankdeck.launch.control import wait_for_end
from rankdeck.launch.guard_launcher import NotResumableError, alive_error
from rankdeck.run_dir import RunDir

_RELEASE_TIMEOUT_S = 20.0
"""How long to wait for a guard to release the lock after it has written the exit record."""


def check_not_alive(run: RunDir) -> None:
    """Check that the run has ended.

    Raises:
        NotResumableError: the run is alive.
    """
    # A guard that has written the exit record is about to release the lock.
    is_ending = run.exit_record() is not None
    if run.is_alive() and not (is_ending and wait_for_end(run, _RELEASE_TIMEOUT_S)):
        raise alive_error(run)


def check_resumable(run: RunDir, config: RunConfig, *, is_multi_host: bool = False) -> None:
    """Check that the run can be resumed with `config`.

    If `is_multi_host` is True, checkpoints are not checked here: the hosts compare their checkpoints later.

    Raises:
        NotResumableError: the run cannot be resumed.
    """
    check_not_alive(run)
    _check_foreign_entries(run)
    if is_multi_host:
        return
    checkpoint, complaints = newest_intact(run.checkpoints_folder)
    if checkpoint is None:
        message = phrase("{run} has no checkpoint to resume from.", run=run.name)
        for complaint in complaints:
            message = phrase("{message} {complaint}", message=message, complaint=complaint)
        raise NotResumableError(
            message,
            code="no-checkpoint",
            advice=phrase(
                "A checkpoint is saved when the run is stopped, every train.checkpoint_every "
                "steps, and by rankdeck checkpoint. Start over with: rankdeck train {file}",
                file=shlex.quote(str(run.config_file)),
            ),
        )
    steps = config.train.known_steps
    # A run at its last step without weights still has to write them.
    if steps is not None and (checkpoint.step > steps or (checkpoint.step == steps and run.weights.exists())):
        raise NotResumableError(
            phrase(
                "{run} has already reached its last step: {step} of {steps}.",
                run=run.name,
                step=checkpoint.step,
                steps=steps,
            ),
            code="nothing-left",
            advice=phrase(
                "Increase the number of steps: --set train.steps={steps}", steps=2 * checkpoint.step
            ),
        )


def _check_foreign_entries(run: RunDir) -> None:
    """Check that writing to the run's folder cannot change files elsewhere.

    Raises:
        NotResumableError: writing to an entry could change files elsewhere, or the folder cannot be read.
    """
    try:
        entry = run_dir.find_foreign_entry(run.path)
    except OSError as error:
        raise NotResumableError(
            phrase("{path} cannot be read: {why}.", path=error.filename or run.path, why=error.strerror),
            advice=phrase("Fix the folder's permissions."),
        ) from None
    if entry is not None:
        path, kind = entry
        raise NotResumableError(
            phrase(
                "{path} is {kind}: resuming the run could change files outside its folder.",
                path=path,
                kind=kind,
            ),
            code="leads-elsewhere",
            path=str(path),
            advice=phrase(
                "Replace it with a real file or folder, or resume a copy made with: cp -rL {run} {copy}",
                run=shlex.quote(str(run.path)),
                copy=shlex.quote(f"{run.path}-copy"),
            ),
        )


def next_title(run: RunDir, config: RunConfig, num_devices: int | None) -> str:
    """Return the title of a run resumed with `config`: the title that the user chose or, if there is none, a
    title made from `config`."""
    attempt_title, before = run.attempt_title, None
    with suppress(ConfigError):
        before = run.config()
    if before is None:
        return attempt_title
    count = None if num_devices is None else len(run.environment().get("devices", ()))
    title = title_of(before, count)
    return (
        title_of(config, num_devices) + attempt_title.removeprefix(title)
        if attempt_title.startswith(title)
        else attempt_title
    )
