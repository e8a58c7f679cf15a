"""The command's side of a launch: everything that can be refused is refused here, before anything starts.

Devices are chosen, the run's directory is made under a hidden name, and a guard is started, which locks it
and gives it its final name. `start` returns once that has happened; from then on the directory tells
everything. `resume` does the same for the next attempt of a run that is over. Nothing here imports torch.
Read guard.py next.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import rankdeck
from rankdeck import rundir
from rankdeck.base.errors import ConfigError, DataError, MachineError, ModelError, RankdeckError
from rankdeck.checkpoint_files import newest_whole
from rankdeck.config import RunConfig, on_devices
from rankdeck.launch import choose, guard
from rankdeck.launch.control import wait_ended
from rankdeck.launch.processes import end_leftovers
from rankdeck.run.prediction import prediction_file
from rankdeck.rundir import RunDir

_ENGINE = str(Path(rankdeck.__file__).parents[1])
# Of the engine's folder, or of site-packages, the guard imports its own few files and nothing else.
_GUARD = (
    "import sys; sys.path.append(sys.argv[1]); "
    "import json; from rankdeck.launch.guard import main; main(json.loads(sys.argv[2]))"
)
_READY_S = 30.0
_LETTING_GO_S = 20.0
"""How long a run that has said its last word may take until nothing of it is left."""
_SET_BY_RUNS = {  # what a run that this command happens to be part of has put into its environment
    "RANKDECK_RUN",
    guard.GUARD,
    "RANKDECK_ATTEMPT",
    "RANKDECK_SUPERVISOR_PID",
    "RANKDECK_HEARTBEAT",
    "RANKDECK_STACKS",
    # A run is on real devices: whoever looks at simulated ones does not hand them to ranks.
    "RANKDECK_NVML",
}
_VERSIONED = ("torch", "numpy", "safetensors", "tokenizers", "nvidia-ml-py")


class NotResumableError(RankdeckError):
    """There is nothing to go on from, or nothing to do."""

    code = "not-resumable"
    exit_code = 2


def start(
    config: RunConfig,
    *,
    runs: Path,
    detach: bool,
    command_line: Sequence[str],
    started: float,
    worker: str | None = None,
) -> RunDir:
    """A run under guard, with its final name and its lock held.

    Not detached, the run stops when this process ends: it keeps one end of a pipe open, on purpose, for as
    long as it lives. `started` is when the person's command began (Unix seconds). `worker` is the module or
    .py file that ranks run, rankdeck.training.worker where it is None.

    Raises:
        ConfigError, DataError, ModelError, DeviceError: what was asked for cannot be run.
        MachineError: no driver, or no process could be started.
    """
    config, choice = _check(config)
    hidden = rundir.create(runs, config, _environment(config, choice, command_line, started))
    try:
        run = _start_guard(hidden, choice, detach=detach, worker=worker)
    except BaseException:
        shutil.rmtree(hidden.path, ignore_errors=True)
        raise
    rundir.enter_in_index(run)
    return run


def resume(
    run: RunDir,
    config: RunConfig,
    *,
    detach: bool,
    command_line: Sequence[str],
    started: float,
    worker: str | None = None,
) -> RunDir:
    """The next attempt of a run, from its newest whole checkpoint; otherwise as `start`.

    Raises:
        NotResumableError: it is alive, has no whole checkpoint, or has nothing left to do.
        ConfigError, DataError, ModelError, DeviceError, MachineError: as `start`.
    """
    _check_resumable(run, config)
    config, choice = _check(config)
    environment = _environment(config, choice, command_line, started)
    attempt, files = rundir.add_attempt(run, config, environment)
    try:
        _start_guard(run, choice, detach=detach, worker=worker, attempt=attempt)
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise
    # What was predicted was for the attempt before, which may have had another strategy.
    prediction_file(run).unlink(missing_ok=True)
    # Whoever watches the index looks again at this run.
    rundir.enter_in_index(run)
    return run


def _check_resumable(run: RunDir, config: RunConfig) -> None:
    is_ending = run.end() is not None
    if run.is_alive() and not (is_ending and wait_ended(run, _LETTING_GO_S)):
        raise _alive_error(run)
    checkpoint, complaints = newest_whole(run.checkpoints_folder)
    if checkpoint is None:
        raise NotResumableError(
            " ".join([f"{run.name} has no checkpoint to go on from.", *complaints]),
            code="no-checkpoint",
            advice="A run is saved when it is stopped, every train.checkpoint_every steps, and by rankdeck "
            f"checkpoint. Begin anew with: rankdeck train {run.config_file}",
        )
    steps = config.train.known_steps
    if steps is not None and checkpoint.step >= steps:
        raise NotResumableError(
            f"{run.name} is at its last step already: {checkpoint.step} of {steps}.",
            code="nothing-left",
            advice=f"Give it more steps: --set train.steps={2 * checkpoint.step}",
        )


def _alive_error(run: RunDir) -> NotResumableError:
    return NotResumableError(
        f"{run.name} is running.", code="running", advice=f"Stop it first with: rankdeck stop {run.name}"
    )


def _check(config: RunConfig) -> tuple[RunConfig, choose.ChosenDevices]:
    """A run that can begin, and its devices. Leftovers of others are ended on the way."""
    check_paths(config)
    choice = choose.choose_devices(config)
    kind = "cpu" if choice.devices[0].kind == "virtual" else "gpu"
    config = on_devices(config, kind, len(choice.devices))
    end_leftovers()
    return config, choice


def check_paths(config: RunConfig) -> None:
    """Files and folders that the run will read exist and may be read.

    Raises:
        DataError, ModelError: one does not, or may not.
    """
    path = config.data.args.get("path")
    if isinstance(path, str) and not path.startswith("@") and ":" not in config.data.use:
        if not Path(path).exists():
            raise DataError(
                f"data.args.path = {path} does not exist.", path="data.args.path", advice="Correct the path."
            )
        if not os.access(path, os.R_OK | (os.X_OK if Path(path).is_dir() else 0)):
            raise DataError(
                f"data.args.path = {path} may not be read.",
                path="data.args.path",
                advice="Change its permissions, or choose another path.",
            )
    for section, use, error in (
        ("model", config.model.use, ModelError),
        ("data", config.data.use, DataError),
        ("loss", config.loss.use, ConfigError),
        ("train.optimizer", config.train.optimizer.use, ConfigError),
    ):
        file, colon, _ = use.rpartition(":")
        if colon and file.endswith(".py") and not Path(config.folder or ".", file).is_file():
            raise error(
                f"{section}.use: {file} does not exist.", path=f"{section}.use", advice="Correct the path."
            )


def _environment(
    config: RunConfig, choice: choose.ChosenDevices, command_line: Sequence[str], started: float
) -> dict[str, Any]:
    """environment.json. `problems` are warnings that the supervisor passes on as events."""
    return {
        "versions": {"rankdeck": rankdeck.__version__, **{name: _version(name) for name in _VERSIONED}},
        "devices": msgspec.to_builtins(choice.devices),
        "commit": _commit(config.folder),
        "command_line": list(command_line),
        "started": started,
        "python": platform.python_version(),
        "host": platform.node(),
        "problems": msgspec.to_builtins(choice.warnings),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit(folder: str | None) -> str | None:
    """The commit of the configuration's folder, with "+" where files have changed since; None outside git."""
    if folder is None:
        return None
    try:
        done = subprocess.run(
            ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"],
            capture_output=True,
            text=True,
            timeout=2,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _start_guard(
    hidden: RunDir, choice: choose.ChosenDevices, *, detach: bool, worker: str | None, attempt: int = 0
) -> RunDir:
    """The guard is told what to do by its only argument, and answers once through a pipe."""
    run = RunDir(rundir.final_path(hidden))
    for lease in choice.leases:
        lease.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "rankdeck.launch.supervisor", str(run.path), "--words", "{words}"]
    command += ["--attempt", str(attempt)]
    if worker is not None:
        command += ["--worker", worker]
    answer_end, ready_end = os.pipe()
    tether_end, kept_end = (None, None) if detach else os.pipe()
    spec = {
        "hidden": str(hidden.path),
        "final": str(run.path),
        "command": command,
        "leases": [str(path) for path in choice.leases],
        "ready_fd": ready_end,
        "tether_fd": tether_end,
        "attempt": attempt,
    }
    environment = {key: value for key, value in os.environ.items() if key not in _SET_BY_RUNS}
    passed = [ready_end] if tether_end is None else [ready_end, tether_end]
    try:
        first = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, _ENGINE, json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=passed,
            # Not yet RANKDECK_RUN: until it holds the lock, it would look like a leftover of its run.
            env={**environment, guard.GUARD: str(run.path)},
        )
    except OSError as error:
        raise MachineError(f"No process could be started: {error.strerror}.") from None
    finally:
        for handle in passed:
            os.close(handle)
    try:
        _read_answer(answer_end, run)
    except BaseException:
        if kept_end is not None:
            os.close(kept_end)
        raise
    finally:
        os.close(answer_end)
        first.wait()
    return run


def _read_answer(answer_end: int, run: RunDir) -> None:
    """Raises: DeviceError when a lease is held meanwhile, NotResumableError when the run is alive meanwhile,
    MachineError when there is no guard."""
    ready, _, _ = select.select([answer_end], [], [], _READY_S)
    data = os.read(answer_end, 65536) if ready else b""
    answer = json.loads(data) if data else {}
    if "ready" in answer:
        return
    if "alive" in answer:
        raise _alive_error(run)
    if "refused" in answer:
        raise choose.busy_error("One of the chosen GPUs", answer["refused"].strip() or "another run")
    raise MachineError(
        f"The run could not be started: {answer.get('failed', 'its guard gave no answer')}.",
        advice="Check the space on the disk and the permissions of the folder of runs.",
    )
