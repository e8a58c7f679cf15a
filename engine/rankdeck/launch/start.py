"""Start runs from a command, after checking everything that could prevent a start.

`start_run` chooses devices, creates the run's directory under a hidden name, and returns once a guard has
locked and renamed the directory. `resume_run` starts the next attempt of a run that has ended, and
`start_script` starts a user's script. Nothing here imports torch. Read guard_launcher.py next.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import msgspec

import rankdeck
from rankdeck import run_dir
from rankdeck.base.errors import ConfigError, MachineError
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
from rankdeck.launch.guard_launcher import NotResumableError, start_guard
from rankdeck.launch.machine import check_machine
from rankdeck.launch.multi_host_role import MultiHostRole
from rankdeck.launch.processes import kill_leftovers
from rankdeck.launch.resumable import check_not_alive, check_resumable, next_title
from rankdeck.launch.streams import AttachedStreams
from rankdeck.run_dir import FIRST_STEPS_KEY, RunDir

_MAX_SAME_TITLES = 1000
"""Maximum number of similarly titled earlier runs, newest first, to consider when making a title unique."""
_RECORDED_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "nvidia-ml-py")


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
) -> RunDir:
    """Start a run under a guard and return it under its final name, with its lock held.

    Unless `detach` is set, the run stops when this process ends: the process holds one end of a pipe open.
    `started` is when the user's command started (Unix seconds). `worker` is the module or .py file that the
    ranks run; rankdeck.training.worker by default. If `multi_host_role` is set, only this host's part of the
    run is started. If `first_steps` is set, the run takes that many steps and is not added to the index of
    runs; if it is 0, the run is only verified.

    Raises: ConfigError, DataError, ModelError, DeviceError: the configuration cannot be run, or its name is
        invalid. MachineError: there is no driver, or no process could be started.
    """
    validate_name(config.name)
    config, choice = _check_run(config, multi_host_role)
    title = title_of(config, len(choice.devices) if multi_host_role is None else None)
    masked_command = command_line if multi_host_role is None else multi_host_role.mask_secret(command_line)
    environment = run_environment(config, choice, masked_command, started)
    name = None if multi_host_role is None else multi_host_role.folder_name(runs)
    extra_facts = {} if first_steps is None else {FIRST_STEPS_KEY: first_steps}
    environment |= {"title": _unique_title(title, config, runs), **extra_facts}
    hidden = run_dir.create_run_dir(runs, config, environment, name)
    handed_over = multi_host_role.hand_over(config, choice.devices) if multi_host_role else nullcontext()
    with run_dir.remove_unless_started(hidden.path), handed_over as hosts:
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
) -> RunDir:
    """Start the next attempt of a run from its newest complete checkpoint.

    The other arguments are those of `start_run`.

    Raises:
        NotResumableError: the run is alive, has no complete checkpoint, or has nothing left to do.
        ConfigError, DataError, ModelError, DeviceError, MachineError: as in `start_run`.
    """
    check_resumable(run, config, is_multi_host=multi_host_role is not None)
    config, choice = _check_run(config, multi_host_role)
    masked_command = command_line if multi_host_role is None else multi_host_role.mask_secret(command_line)
    environment = run_environment(config, choice, masked_command, started)
    environment["title"] = next_title(run, config, len(choice.devices) if multi_host_role is None else None)
    min_attempt = 0 if multi_host_role is None else multi_host_role.attempt
    attempt, files = run_dir.add_attempt(run, config, environment, min_attempt)
    try:
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
    kill_leftovers()
    check_machine(config.script.ranks, needs_loopback=not config.script.plain)
    environment = _environment_facts(config.script.folder, choice, command_line, started)
    hidden = run_dir.create_run_dir(
        runs, config, environment | {"title": _unique_title(config.name, config, runs)}
    )
    with run_dir.remove_unless_started(hidden.path):
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


def run_environment(
    config: RunConfig, choice: device_selection.ChosenDevices, command_line: Sequence[str], started: float
) -> JsonObject:
    """Return the contents of environment.json for a configuration's run, whose ranks use this Python
    environment."""
    facts = _environment_facts(
        config.folder, choice, command_line, started, reads_files=bool(config.user_code())
    )
    facts["versions"] |= {name: _package_version(name) for name in _RECORDED_PACKAGES}
    return {**facts, "python": platform.python_version()}


def _environment_facts(
    folder: str | None,
    choice: device_selection.ChosenDevices,
    command_line: Sequence[str],
    started: float,
    *,
    reads_files: bool = True,
) -> JsonObject:
    """Return the contents of environment.json for a script. The script reports its own package versions after
    importing the packages.

    The entry `problems` contains warnings that the supervisor forwards as events.
    """
    return {
        "versions": {"rankdeck": rankdeck.__version__},
        "devices": msgspec.to_builtins(choice.devices),
        "commit": _git_commit(folder, reads_files=reads_files),
        "command_line": list(command_line),
        "started": started,
        "host": platform.node(),
        "problems": msgspec.to_builtins(choice.warnings),
    }


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit(folder: str | None, *, reads_files: bool) -> str | None:
    """Return the commit checked out in `folder`, with "+" if files have changed; None outside git.

    To compare files, git executes commands from the repository's own settings (core.fsmonitor, filters). The
    comparison is therefore skipped if `reads_files` is False, as for a folder from which the run executes no
    code.
    """
    if folder is None:
        return None
    command = ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            [*command, *(["--dirty=+"] if reads_files else [])],
            capture_output=True,
            text=True,
            timeout=2,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
