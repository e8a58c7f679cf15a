"""Start runs from a command, after checking everything that could prevent a start.

`start_run` chooses devices, creates the run's directory under a hidden name, and returns once a guard has
locked and renamed the directory. `resume_run` starts the next attempt of a run that has ended, and
`start_script` starts a user's script. Nothing here imports torch. Read guard_launcher.py next.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rankdeck import run_dir
from rankdeck.base.errors import ConfigError, MachineError, Problem
from rankdeck.base.files import read_toml_or_empty
from rankdeck.base.masking import mask_table
from rankdeck.base.names import validate_name
from rankdeck.base.parsing import JsonObject
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.config import RunConfig, on_devices
from rankdeck.config.consent import check_paths
from rankdeck.config.naming import title_of, unique_title
from rankdeck.config.script import ScriptConfig
from rankdeck.launch import device_selection
from rankdeck.launch.environment_facts import run_environment, script_environment_facts
from rankdeck.launch.guard_launcher import NotResumableError, start_guard
from rankdeck.launch.machine import check_machine
from rankdeck.launch.multi_host_role import MultiHostRole
from rankdeck.launch.processes import kill_leftovers
from rankdeck.launch.resumable import check_not_alive, check_resumable, next_title
from rankdeck.launch.streams import AttachedStreams
from rankdeck.run_dir import FIRST_STEPS_KEY, RunDir

_MAX_SAME_TITLES = 1000
"""Maximum number of similarly titled earlier runs, newest first, to consider when making a title unique."""


@dataclass(frozen=True)
class QueuedStart:
    """Additions of the queue to a start.

    `facts` becomes the entry "queue" of environment.json. `leases`: the lease files of CPU slots, which the
    run's guard holds as well. `warnings` are reported by the run. `record_run` is called with the run's final
    path and the attempt before the guard starts.
    """

    facts: JsonObject
    leases: Sequence[Path]
    warnings: Sequence[Problem]
    record_run: Callable[[Path, int], None]

    def extend(self, choice: device_selection.ChosenDevices) -> None:
        """Add the leases and warnings to the devices that the run has chosen."""
        choice.leases.extend(self.leases)
        choice.warnings.extend(self.warnings)


def start_run(
    config: RunConfig,
    *,
    runs: Path,
    detach: bool,
    command_line: Sequence[str],
    started: float,
    worker: str | None = None,
    multi_host_role: MultiHostRole | None = None,
    first_steps: int | None = None,
    queued: QueuedStart | None = None,
) -> RunDir:
    """Start a run under a guard and return it under its final name, with its lock held.

    Unless `detach` is set, the run stops when this process ends: the process holds one end of a pipe open.
    `started` is when the user's command started (Unix seconds). `worker` is the module or .py file that the
    ranks run; rankdeck.training.worker by default. If `multi_host_role` is set, only this host's part of the
    run is started. If `first_steps` is set, the run takes that many steps and is not added to the index of
    runs; if it is 0, the run is only verified. `queued` is set if the queue starts the run.

    Raises: ConfigError, DataError, ModelError, DeviceError: the configuration cannot be run, or its name is
        invalid. MachineError: there is no driver, or no process could be started.
    """
    validate_name(config.name)
    config, choice = _check_run(config, multi_host_role)
    if queued is not None:
        queued.extend(choice)
    title = title_of(config, len(choice.devices) if multi_host_role is None else None)
    masked_command = command_line if multi_host_role is None else multi_host_role.mask_secret(command_line)
    environment = run_environment(config, choice, masked_command, started)
    name = None if multi_host_role is None else multi_host_role.folder_name(runs)
    extra_facts = {} if first_steps is None else {FIRST_STEPS_KEY: first_steps}
    environment |= {"title": _unique_title(title, config, runs), **extra_facts, **_queue_facts(queued)}
    hidden = run_dir.create_run_dir(runs, config, environment, name)
    handed_over = multi_host_role.hand_over(config, choice.devices) if multi_host_role else nullcontext()
    with run_dir.remove_unless_started(hidden.path), handed_over as hosts:
        if queued is not None:
            queued.record_run(run_dir.final_path(hidden), 0)
        run = start_guard(hidden, choice.leases, detach=detach, worker=worker, hosts=hosts)
    if first_steps is None:
        run_dir.add_to_index(run)
    return run


def resume_run(
    run: RunDir,
    config: RunConfig,
    *,
    detach: bool,
    command_line: Sequence[str],
    started: float,
    worker: str | None = None,
    multi_host_role: MultiHostRole | None = None,
    queued: QueuedStart | None = None,
) -> RunDir:
    """Start the next attempt of a run from its newest complete checkpoint.

    The other arguments are those of `start_run`.

    Raises:
        NotResumableError: the run is alive, has no complete checkpoint, or has nothing left to do.
        ConfigError, DataError, ModelError, DeviceError, MachineError: as in `start_run`.
    """
    check_resumable(run, config, is_multi_host=multi_host_role is not None)
    config, choice = _check_run(config, multi_host_role)
    if queued is not None:
        queued.extend(choice)
    masked_command = command_line if multi_host_role is None else multi_host_role.mask_secret(command_line)
    environment = run_environment(config, choice, masked_command, started)
    environment["title"] = next_title(run, config, len(choice.devices) if multi_host_role is None else None)
    environment |= _queue_facts(queued)
    min_attempt = 0 if multi_host_role is None else multi_host_role.attempt
    attempt, files = run_dir.add_attempt(run, config, environment, min_attempt)
    try:
        if queued is not None:
            queued.record_run(run.path, attempt)
        with multi_host_role.hand_over(config, choice.devices) if multi_host_role else nullcontext() as hosts:
            start_guard(run, choice.leases, detach=detach, attempt=attempt, worker=worker, hosts=hosts)
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise
    # The new entry makes watchers of the index read this run again.
    run_dir.add_to_index(run)
    return run


def start_script(
    config: ScriptConfig,
    *,
    runs: Path,
    detach: bool,
    command_line: Sequence[str],
    started: float,
    attached: AttachedStreams | None = None,
    queued: QueuedStart | None = None,
) -> RunDir:
    """Start a run of a user's script under a guard.

    `attached` are the streams that the script shares with this command. If it is None, the script's output
    goes only to the logs, and its stdin is empty. The other arguments are those of `start_run`.

    Raises:
        ConfigError: the script or its folder does not exist.
        DeviceError: a named device does not exist, or another run holds it.
        MachineError: there is no such interpreter or no driver, or no process could be started.
    """
    check_script(config)
    choice = device_selection.choose_script_devices(config)
    if queued is not None:
        queued.extend(choice)
    kill_leftovers()
    check_machine(config.script.ranks, needs_loopback=not config.script.plain)
    environment = script_environment_facts(config.script.folder, choice, command_line, started)
    environment |= {"title": _unique_title(config.name, config, runs), **_queue_facts(queued)}
    hidden = run_dir.create_run_dir(runs, config, environment)
    with run_dir.remove_unless_started(hidden.path):
        if queued is not None:
            queued.record_run(run_dir.final_path(hidden), 0)
        run = start_guard(hidden, choice.leases, detach=detach, attached=attached)
    run_dir.add_to_index(run)
    return run


def rerun(
    run: RunDir,
    *,
    detach: bool,
    command_line: Sequence[str],
    started: float,
    attached: AttachedStreams | None = None,
) -> RunDir:
    """Start a new run with the same script and working directory as `run`.

    Raises:
        NotResumableError: the run is alive, or is not the run of a script. Other errors are those of
            `start_script`.
    """
    config = run.script()
    if config is None:
        raise NotResumableError(
            phrase("{run} was started from a configuration, not from a script.", run=run.name),
            code="no-script",
            advice=phrase("Resume the run with: rankdeck resume {run}", run=run.name),
        )
    check_not_alive(run)
    return start_script(
        config,
        runs=run.path.parent,
        detach=detach,
        command_line=command_line,
        started=started,
        attached=attached,
    )


def _queue_facts(queued: QueuedStart | None) -> JsonObject:
    return {} if queued is None else {"queue": queued.facts}


def check_script(config: ScriptConfig) -> None:
    """Check that a script's folder, file, interpreter and log folder can be used.

    Raises:
        ConfigError: the script or its folder does not exist, or its log folder cannot be written.
        MachineError: the interpreter does not exist.
    """
    script = config.script
    if not Path(script.folder).is_dir():
        raise ConfigError(
            phrase("The folder {folder} does not exist.", folder=script.folder),
            path="script.folder",
            advice=phrase("Correct the path."),
        )
    file = config.script_file
    if file is not None and not file.exists():
        raise ConfigError(
            phrase("{file} does not exist.", file=file),
            code="no-such-script",
            path="script.run",
            advice=phrase("Correct the path, or use -m to run a module, as with python -m."),
        )
    if script.log_folder is not None:
        _check_log_folder(Path(script.log_folder))
    searched = {**os.environ, **script.environment}.get("PATH")
    if script.kind == "program":
        # As in a shell, only a name without a slash is searched for in PATH.
        if shutil.which(Path(script.folder, script.run) if "/" in script.run else script.run, path=searched):
            return
        raise ConfigError(
            phrase("The program {program} does not exist or is not executable.", program=script.run),
            code="no-such-script",
            path="script.run",
            advice=phrase("Correct the path, or leave --no-python out if the program is a Python script."),
        )
    if shutil.which(script.python, path=searched) is None:
        raise MachineError(
            phrase("The interpreter {python} does not exist or is not executable.", python=script.python),
            code="no-interpreter",
            path="script.python",
            advice=phrase("Choose another interpreter with --python."),
        )


def _check_log_folder(folder: Path) -> None:
    """Create the folder and check that files can be created in it.

    Raises:
        ConfigError: no file can be created there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Only creating a file shows that it is possible: permissions say nothing of a read-only disk.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(
            phrase(
                "Logs cannot be written to {folder} (--log-dir): {why}.", folder=folder, why=error.strerror
            ),
            code="unwritable",
            path="script.log_folder",
            advice=phrase(
                "Choose another folder, or leave --log-dir out: every rank's output is also in "
                "the run's logs."
            ),
        ) from None


def _unique_title(name: str, config: RunConfig | ScriptConfig, runs: Path) -> str:
    """Return a title for a new run: `name`, extended if a run in `runs` already has that title."""
    beginning = run_dir.slug(name)
    alike = [run for run in run_dir.list_folder(runs) if run.title_slug.startswith(beginning)]
    config_readers = {run.title: partial(_mask_secrets, run.config_file) for run in alike[:_MAX_SAME_TITLES]}
    return unique_title(name, mask_table(config.to_dict()), config_readers)


def _mask_secrets(file: Path) -> dict[str, object]:
    return mask_table(read_toml_or_empty(file))


def _check_run(
    config: RunConfig, several: MultiHostRole | None = None
) -> tuple[RunConfig, device_selection.ChosenDevices]:
    """Check that a run can start, and kill processes left over from ended runs.

    `several` is this host's role in a multi-host run. Returns the configuration for the chosen devices, and
    these devices.
    """
    check_paths(config)
    if several is None:
        check_single_host(config)
    choice = device_selection.choose_devices(config if several is None else several.for_this_host(config))
    num_ranks = 1 if config.strategy_spec.one_process else len(choice.devices)
    check_machine(num_ranks, needs_loopback=several is None)
    kind = "cpu" if choice.devices[0].kind == "virtual" else "gpu"
    num_devices = len(choice.devices)
    config = on_devices(
        config, kind, *([num_devices] if several is None else several.device_counts(config, num_devices))
    )
    kill_leftovers()
    return config, choice


def check_single_host(config: RunConfig) -> None:
    """Check that the configuration names no hosts.

    Raises:
        ConfigError: the configuration names hosts, but the command runs only on this host.
    """
    if config.hosts.use:
        raise ConfigError(
            plural_phrase(
                tr_noop("hosts.use lists 1 host, but this command runs only on the current host."),
                tr_noop("hosts.use lists {n} hosts, but this command runs only on the current host."),
                len(config.hosts.use),
            ),
            path="hosts.use",
            advice=phrase(
                "Use rankdeck train to start the run on all listed hosts, or remove [hosts] to "
                "run only on this host."
            ),
        )
