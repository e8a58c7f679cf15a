"""Whether a run can be gone on with: it is over, has a whole checkpoint and something left to do (if only its
weights to save), and its folder holds nothing that leads elsewhere."""

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
"""How long a run that has said its last word may take until nothing of it is left."""


def check_not_alive(run: RunDir) -> None:
    """Raises: NotResumableError: it is alive."""
    is_ending = run.exit_record() is not None
    if run.is_alive() and not (is_ending and wait_for_end(run, _RELEASE_TIMEOUT_S)):
        raise alive_error(run)


def check_resumable(run: RunDir, config: RunConfig, *, is_multi_host: bool = False) -> None:
    """Raises: NotResumableError: it is not. What several hosts have of its checkpoints, they find out."""
    check_not_alive(run)
    _check_foreign_entries(run)
    if is_multi_host:
        return
    checkpoint, complaints = newest_intact(run.checkpoints_folder)
    if checkpoint is None:
        message = phrase("{run} has no checkpoint to go on from.", run=run.name)
        for complaint in complaints:
            message = phrase("{message} {complaint}", message=message, complaint=complaint)
        raise NotResumableError(
            message,
            code="no-checkpoint",
            advice=phrase(
                "A run is saved when it is stopped, every train.checkpoint_every steps, and by rankdeck "
                "checkpoint. Begin anew with: rankdeck train {file}",
                file=shlex.quote(str(run.config_file)),
            ),
        )
    steps = config.train.known_steps
    # At its last step without weights, only these are left to write.
    if steps is not None and (checkpoint.step > steps or (checkpoint.step == steps and run.weights.exists())):
        raise NotResumableError(
            phrase(
                "{run} is at its last step already: {step} of {steps}.",
                run=run.name,
                step=checkpoint.step,
                steps=steps,
            ),
            code="nothing-left",
            advice=phrase("Give it more steps: --set train.steps={steps}", steps=2 * checkpoint.step),
        )


def _check_foreign_entries(run: RunDir) -> None:
    """Raises: NotResumableError where writing into the run would reach files elsewhere."""
    try:
        found = run_dir.find_foreign_entry(run.path)
    except OSError as error:
        raise NotResumableError(
            phrase("{path} cannot be read: {why}.", path=error.filename or run.path, why=error.strerror),
            advice=phrase("Mend the folder's permissions."),
        ) from None
    if found is not None:
        path, kind = found
        raise NotResumableError(
            phrase(
                "{path} is {kind}: going on with the run could change what lies elsewhere.",
                path=path,
                kind=kind,
            ),
            code="leads-elsewhere",
            path=str(path),
            advice=phrase(
                "Put a file or folder of its own in its place, as in a copy made with: cp -rL {run} {copy}",
                run=shlex.quote(str(run.path)),
                copy=shlex.quote(f"{run.path}-copy"),
            ),
        )


def next_title(run: RunDir, config: RunConfig, num_devices: int | None) -> str:
    """What a run is called that goes on with `config`: where no person named it, after what trains now."""
    known, before = run.attempt_title, None
    with suppress(ConfigError):
        before = run.config()
    if before is None:
        return known
    count = None if num_devices is None else len(run.environment().get("devices", ()))
    title = title_of(before, count)
    return title_of(config, num_devices) + known.removeprefix(title) if known.startswith(title) else known
