"""Start a guard for a run directory that has a hidden name; the guard renames this directory.

The guard reads its `GuardSpec` from its standard input, which no other process can read, and answers once
through a pipe. If this command is itself part of a run, that run's variables are removed from the guard's
environment. Read guard.py next.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import rankdeck
from rankdeck import run_dir
from rankdeck.base.errors import MachineError, RankdeckError
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.config.consent import record_start_consent
from rankdeck.config.multi_host import HOST_NAME_ENV, JOIN_ENV
from rankdeck.config.script import ScriptConfig
from rankdeck.launch import device_selection, guard
from rankdeck.launch.guard_spec import GuardSpec, HostsSpec
from rankdeck.launch.streams import AttachedStreams
from rankdeck.launch.torchrun import without_observer
from rankdeck.run_dir import RunDir

_ENGINE_FOLDER = str(Path(rankdeck.__file__).parents[1])
# The engine's folder may be site-packages; the guard imports only its own few files from it.
_GUARD_CODE = (
    "import sys; sys.path.append(sys.argv[1]); "
    "import json; from rankdeck.launch.guard_start import main; main(json.load(sys.stdin))"
)
_READY_TIMEOUT_S = 30.0
SCRIPT_KILL_AFTER_S = 32.0
"""How long a script's supervisor has from TERM to KILL: 30 s for its ranks, the rest for its own reports."""
_RUN_VARIABLES = {  # set by a run that this command may be part of
    "RANKDECK_RUN",
    guard.GUARD_ENV,
    "RANKDECK_ATTEMPT",
    "RANKDECK_SUPERVISOR_PID",
    "RANKDECK_HEARTBEAT",
    "RANKDECK_STACKS",
    # A run uses real devices, even if the command that starts it shows simulated ones.
    "RANKDECK_NVML",
    HOST_NAME_ENV,
    JOIN_ENV,
}


class NotResumableError(RankdeckError):
    """Raised when the run cannot be resumed, e.g. because it is alive, has no checkpoint or has nothing left
    to do."""

    code = "not-resumable"
    exit_code = 2


def start_guard(
    hidden: RunDir,
    leases: Sequence[Path],
    *,
    detach: bool,
    attempt: int = 0,
    worker: str | None = None,
    attached: AttachedStreams | None = None,
    lock_fds: Sequence[int] = (),
    hosts: HostsSpec | None = None,
) -> RunDir:
    """Start the guard and, once the guard holds the run's lock, return the run under its final name.

    `worker` is the module or file that a configuration's ranks run. `attached` are the streams that a script
    shares with this command. `lock_fds` and `hosts` become the fields `held` and `hosts` of `GuardSpec`.

    Raises: DeviceError for a taken lease, NotResumableError for a live run, MachineError for other failures.
    """
    run = RunDir(run_dir.final_path(hidden))
    config = hidden.script() or hidden.config()
    record_start_consent(config)
    for lease in leases:
        lease.parent.mkdir(parents=True, exist_ok=True)
    attached = None if attached is None else attached.duplicate()
    answer_end, ready_end = os.pipe()
    tether_end, kept_end = (None, None) if detach else os.pipe()
    streams = [] if attached is None else attached.fds()
    max_restarts, stop_s = _restart_and_stop_limits(config)
    spec: GuardSpec = {
        "hidden": str(hidden.path),
        "final": str(run.path),
        "command": _supervisor_command(run, attempt, worker, attached),
        "leases": [str(path) for path in leases],
        "ready_fd": ready_end,
        "tether_fd": tether_end,
        "attempt": attempt,
        "max_restarts": max_restarts,
        "signals": isinstance(config, ScriptConfig),
        "stop_s": stop_s,
        "passed": streams,
        "held": list(lock_fds),
        "hosts": hosts,
    }
    own_ends = [ready_end] if tether_end is None else [ready_end, tether_end]
    try:
        first = _popen(run, spec)
    finally:
        for handle in [*own_ends, *streams]:
            os.close(handle)
    try:
        _read_answer(answer_end, run, hidden.path)
    except BaseException:
        if kept_end is not None:
            os.close(kept_end)
        raise
    finally:
        os.close(answer_end)
        # The process that was started here ends at once: the guard is its grandchild (guard_start.daemonize).
        first.wait()
    return run


def _restart_and_stop_limits(config: RunConfig | ScriptConfig) -> tuple[int, float]:
    """Return how many times the guard may restart the run, and the seconds that the supervisor gets from TERM
    to KILL."""
    if isinstance(config, ScriptConfig):
        return config.script.max_restarts, SCRIPT_KILL_AFTER_S
    return config.launch.max_restarts, guard.KILL_AFTER_S


def _supervisor_command(
    run: RunDir, attempt: int, worker: str | None, attached: AttachedStreams | None
) -> list[str]:
    """Return the supervisor's command line, with a placeholder for its report descriptor."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "rankdeck.launch.supervisor",
        str(run.path),
        "--report-fd",
        "{report_fd}",
    ]
    command += ["--attempt", str(attempt)]
    if worker is not None:
        command += ["--worker", worker]
    return command if attached is None else [*command, "--attached", attached.to_argument()]


def _popen(run: RunDir, spec: GuardSpec) -> subprocess.Popen[bytes]:
    listener = None if spec["hosts"] is None else spec["hosts"].get("listener")
    ends = [spec["ready_fd"], spec["tether_fd"], listener, *spec["passed"], *spec["held"]]
    environ = without_observer(os.environ)
    environment = {name: value for name, value in environ.items() if name not in _RUN_VARIABLES}
    try:
        first = subprocess.Popen(
            # Isolated and without site-packages, so that nothing installed there can break the guard.
            [sys.executable, "-I", "-S", "-c", _GUARD_CODE, _ENGINE_FOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[end for end in ends if end is not None],
            # Not RANKDECK_RUN: until the guard holds the lock, it would look like a leftover of the run.
            env={**environment, guard.GUARD_ENV: str(run.path)},
        )
        assert first.stdin is not None
        with first.stdin as end:
            end.write(json.dumps(spec).encode())
        return first
    except OSError as error:
        message = phrase("No process could be started: {why}.", why=error.strerror)
        raise MachineError(message) from None


def alive_error(run: RunDir) -> NotResumableError:
    return NotResumableError(
        phrase("{run} is running.", run=run.name),
        code="running",
        advice=phrase("Stop it first with: rankdeck stop {run}", run=run.name),
    )


def _read_answer(answer_end: int, run: RunDir, folder: Path) -> None:
    """Wait for the guard's answer.

    Raises:
        DeviceError: another run has taken a lease in the meantime.
        NotResumableError: the run has been resumed in the meantime.
        MachineError: the guard could not start.
    """
    ready, _, _ = select.select([answer_end], [], [], _READY_TIMEOUT_S)
    data = os.read(answer_end, 65536) if ready else b""
    answer = json.loads(data) if data else {}
    if "ready" in answer:
        return
    if "alive" in answer:
        raise alive_error(run)
    if "refused" in answer:
        raise device_selection.busy_error(answer["refused"].strip() or "another run")
    if not (folder.exists() or run.path.exists()):
        raise MachineError(
            phrase("The run could not be started because its folder was removed: {folder}.", folder=run.path),
            code="removed",
            advice=phrase("Start the run again, and keep the runs folder until the run ends."),
        )
    message = phrase("The run could not be started: its guard did not respond.")
    if "failed" in answer:
        message = phrase("The run could not be started: {why}.", why=answer["failed"])
    raise MachineError(
        message, advice=phrase("Check the free disk space and the permissions of the runs folder.")
    )
