"""Guard of one run: holds its lock, reaps all of its processes, writes the exit record.

Standard library only, in an interpreter without site-packages, because the guard must outlive both the
command that started it and the processes that it starts (see start.py). It forks twice into its own session,
becomes the reaper of its orphaned descendants, locks the run's directory, renames it to its final name (which
a resumed run already has), and starts the supervisor, which dies with the guard. When the supervisor has
ended, for whatever reason, the guard kills all remaining processes, and only then writes end.json and
releases the lock. Read control_server.py for stop requests and supervisor.py for what the guard starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import selectors
import signal
import time
from pathlib import Path

from rankdeck.launch.control_server import MAX_LINE_BYTES, ControlServer
from rankdeck.launch.descendants import SuspensionDetector, descendants
from rankdeck.launch.exit_record import ExitRecorder, Sentence, killed_message, phrase
from rankdeck.launch.guard_spec import GuardSpec
from rankdeck.launch.locks import LockHeld, RunAlive, lock
from rankdeck.launch.run_dir_tracker import RunDirTracker
from rankdeck.launch.save_watch import SaveWatch, was_save_interrupted
from rankdeck.observer import process_title

_log = logging.getLogger(__name__)

KILL_AFTER_S = 4.0
"""How long the supervisor has from TERM to KILL: 3 s for its ranks, 1 s for its own reports."""
POLL_INTERVAL_S = 0.25
"""Seconds between two checks of whether the run's directory was moved, replaced or removed."""
EXIT_STOPPED = 130
GUARD_ENV = "RANKDECK_GUARD"
"""Environment variable of a guard; it contains the run's directory. The guard's descendants have RANKDECK_RUN
instead."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILLED_ADVICE = phrase("If you did not kill it, the kernel may have killed it to free memory (see dmesg).")
_MOVED_ADVICE = phrase("Move the folder back and resume the run, or resume the run at its new path.")
_PIPE_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_HANDLED_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Guard:
    """The guard of one run, from taking its lock to writing its exit record."""

    poll_interval_s = POLL_INTERVAL_S

    def __init__(self, spec: GuardSpec) -> None:
        self._spec = spec
        self._is_resume = spec["hidden"] == spec["final"]
        self._run = spec["final"]
        self.lock_fds: list[int] = []
        self._folder = -1
        self._selector = selectors.DefaultSelector()
        self._supervisor = 0
        self._status: int | None = None
        self._is_stop_requested = False
        self._attempt = spec["attempt"]
        self._max_restarts = spec["max_restarts"]
        self._exit_record = ExitRecorder(self._attempt)
        self._kill_at: float | None = None
        self._saves, self._suspended = SaveWatch(self._run), SuspensionDetector()
        self._report_bytes = b""
        self._report_fd = -1
        # For scripts only: the pipe through which the supervisor gets the signals to forward.
        self._signals: tuple[int, int] | None = os.pipe2(_PIPE_FLAGS) if spec.get("signals") else None
        self._stop_timeout_s = spec.get("stop_s", KILL_AFTER_S)

    def prepare(self) -> None:
        """Take the locks, open the control socket and give the run its final name.

        Raises:
            RunAlive: another guard holds the run's lock.
            LockHeld: another run holds a lease.
            OSError: the run's directory cannot be used.
        """
        hidden = self._spec["hidden"]
        process_title.set_process_name("guard", self._run)
        process_title.set_process_title("guard", self._run)
        # Orphans below become children of this process, so that none escapes the final sweep.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            self.lock_fds.append(lock(f"{hidden}/guard.lock", f"{os.getpid()}\n"))
        except LockHeld:
            raise RunAlive from None
        self._folder = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for path in self._spec["leases"]:
            self.lock_fds.append(lock(path, self._run))
        self._exit_record.reserve(self._folder)
        self._listen_to_signals()
        if self._spec["tether_fd"] is not None:
            self._selector.register(self._spec["tether_fd"], selectors.EVENT_READ, self._on_tether)
        pass_on = None if self._signals is None else self._forward_signal
        control_server = ControlServer(self._selector, self._run, self._on_stop_request, pass_on)
        control_server.listen(hidden)
        if self._is_resume:
            # The run is alive again: the exit record of the attempt before is no longer valid.
            Path(hidden, "end.json").unlink(missing_ok=True)
        else:
            # Last, so that a run with its final name always has its lock held and its socket open.
            Path(hidden).rename(self._run)
        self.run_dir_tracker = RunDirTracker(self._run, self._folder, self.lock_fds[0])

    def _listen_to_signals(self) -> None:
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in _HANDLED_SIGNALS:
            # Without a handler the signal would end the process instead of waking the selector.
            signal.signal(number, lambda *_: None)
        self._selector.register(read_end, selectors.EVENT_READ, self._on_signal)

    def start(self) -> None:
        """Start the run once all locks are held. Raises: OSError if no process could be started."""
        self.start_supervisor()

    def poll(self, now_s: float) -> None:
        """Do periodic work; called after each wait."""

    def start_supervisor(self, *more: str) -> None:
        """Fork and execute the supervisor, with further arguments `more`. Raises: OSError if that fails."""
        me = os.getpid()
        report_read, report_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(report_read, selectors.EVENT_READ, self._on_report)
        self._report_bytes, self._report_fd = b"", report_read
        log = os.open(
            f"{self._run}/logs/supervisor.{self._attempt}.err",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o644,
        )
        # Until exec, the child has this process's Python handlers, which lost 8 of 40 stops after a start.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
        self._supervisor = os.fork()
        if self._supervisor == 0:
            try:
                for number in _HANDLED_SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != me:  # the guard ended before the death signal was set
                    os._exit(1)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.set_inheritable(report_write, True)
                command = [
                    argument.replace("{report_fd}", str(report_write)) for argument in self._spec["command"]
                ]
                command += more
                if self._signals is not None:
                    os.set_inheritable(self._signals[0], True)
                    command += ["--signals", str(self._signals[0])]
                environment = {name: value for name, value in os.environ.items() if name != GUARD_ENV}
                os.execve(command[0], command, {**environment, "RANKDECK_RUN": self._run})
            except BaseException as error:
                os.write(2, f"{error}\n".encode())
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)
        _log.info("attempt %d: supervisor %d started", self._attempt, self._supervisor)
        os.close(report_write)
        os.close(log)
        if not self._max_restarts:
            # Only the supervisor keeps these open, so that the other end notices when it has gone.
            for handle in (*self._spec["passed"], *(self._signals or ())[:1]):
                os.close(handle)

    def watch(self) -> None:
        """Serve requests until the supervisor has ended, then kill the processes that it has left behind."""
        self._reap()
        while self._status is None:
            timeout_s = self.poll_interval_s
            if self._kill_at is not None:
                timeout_s = min(timeout_s, max(0.0, self._kill_at - time.monotonic()))
            self.process_events(timeout_s)
            self._reap()
            if self.run_dir_tracker.is_deleted:
                _log.warning("the run directory was removed")
                self.on_removed()
            self.run_dir_tracker.update()
            # The ranks would save into whatever is at the original path now.
            if self.run_dir_tracker.is_replaced:
                self._kill_supervisor()
            now_s = time.monotonic()
            self.poll(now_s)
            if self._suspended.check(self._supervisor, now_s):
                self._exit_record.report_suspended(self._supervisor)
            if self._kill_at is not None:
                # A save that makes progress may finish, and its rank may report it afterwards.
                if self._saves.is_progressing():
                    self._kill_at = max(self._kill_at, now_s + KILL_AFTER_S)
                if now_s >= self._kill_at:
                    self._kill_supervisor()
        self._sweep()
        while self._report_fd >= 0:
            self._on_report(self._report_fd)

    def process_events(self, timeout_s: float) -> None:
        """Handle the selector's ready events, waiting for at most `timeout_s`."""
        for key, _ in self._selector.select(timeout_s):
            key.data(key.fileobj)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._supervisor:
                self._status = os.waitstatus_to_exitcode(status)
                _log.info("attempt %d: supervisor exited with %d", self._attempt, self._status)

    def on_removed(self) -> None:
        """End the run, because its directory was removed."""
        self.stop(now=True)

    def stop(self, *, now: bool) -> None:
        """Ask the supervisor to end the run and, if `now` is True, kill the supervisor. If `now` is False, a
        second call has no effect."""
        if self._status is None and not self._is_stop_requested:
            _log.info("stop requested, SIGTERM to supervisor %d", self._supervisor)
            os.kill(self._supervisor, signal.SIGTERM)
            self._kill_at = time.monotonic() + self._stop_timeout_s
        self._is_stop_requested = True
        if now:
            self._kill_supervisor()

    def _on_stop_request(self, now: bool) -> None:
        """Stop the run; kill it at once if `now` is True or, for a script's run, on the second request."""
        self.stop(now=now or (self._is_stop_requested and self._signals is not None))

    def _forward_signal(self, number: int) -> None:
        assert self._signals is not None
        try:
            os.write(self._signals[1], bytes([number]))
        except OSError:
            pass  # the supervisor has ended, or the pipe is full

    def _kill_supervisor(self) -> None:
        self._kill_at = None
        if self._status is None:
            _log.warning("SIGKILL to supervisor %d", self._supervisor)
            os.kill(self._supervisor, signal.SIGKILL)

    def _on_signal(self, read_end: int) -> None:
        for number in os.read(read_end, 512):
            if number != signal.SIGCHLD:
                self._on_stop_request(number == signal.SIGQUIT)

    def _on_tether(self, tether: int) -> None:
        if not os.read(tether, 512):
            self._selector.unregister(tether)
            self.stop(now=False)

    def _on_report(self, read_end: int) -> None:
        try:
            chunk = os.read(read_end, MAX_LINE_BYTES)
        except BlockingIOError:  # an unrelated process holds the other end
            chunk = b""
        if not chunk:
            self._selector.unregister(read_end)
            os.close(read_end)
            self._report_fd = -1
        elif len(self._report_bytes) < MAX_LINE_BYTES:
            self._report_bytes += chunk

    def _sweep(self) -> None:
        """Kill all remaining descendants, including orphans, which this process adopts as their reaper."""
        pause_s = 0.002
        while True:
            for pid, state in descendants():
                if state != "Z":  # zombies are only waiting to be reaped
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except OSError:
                        pass
            self._reap()
            if not descendants():
                return
            time.sleep(pause_s)
            pause_s = min(0.2, pause_s * 1.5)

    def restart(self) -> bool:
        """Start the next attempt if a signal killed the supervisor and no stop was requested; return whether
        the attempt has started."""
        self._attempt = max(self._attempt, self._exit_record.latest_attempt())
        used, max_restarts = self._attempt - self._spec["attempt"], self._max_restarts
        if self._status is None or self._status >= 0 or self._is_stop_requested or used >= max_restarts:
            return False
        if self.run_dir_tracker.is_deleted or self.run_dir_tracker.is_replaced:
            return False
        self.report_lost_save()
        _log.info("restart %d of %d after signal %d", used + 1, max_restarts, -self._status)
        self._exit_record.report_problem(
            "restarted",
            phrase(
                "{cause} The run continues from its newest checkpoint, or from the beginning "
                "if it has none (restart {n} of {most}).",
                cause=killed_message(-self._status),
                n=used + 1,
                most=max_restarts,
            ),
            _KILLED_ADVICE,
            severity="warning",
        )
        self._exit_record.report_end("failed", 1)
        return self.start_attempt(used + 1)

    def start_attempt(self, restarts: int, *more: str) -> bool:
        """Start the next attempt, which is restart number `restarts`; return whether it has started."""
        self._attempt += 1
        try:
            self.start_supervisor("--attempt", str(self._attempt), "--restarts", str(restarts), *more)
        except OSError:
            return False
        self._status = None
        return True

    def killed_message(self, number: int) -> Sentence:
        """Return the message that signal `number` killed this run's supervisor."""
        return killed_message(number)

    def end(self) -> None:
        """Write the exit record; the supervisor's exit code determines the outcome."""
        self.report_lost_save()
        status = 1 if self._status is None else self._status
        reason = self._reason()
        if self.run_dir_tracker.is_replaced and status < 0:
            outcome, code, reason = "failed", 1, self.run_dir_tracker.replaced_message()
            self._exit_record.report_problem("run-folder", reason, _MOVED_ADVICE)
        elif self._is_stop_requested and (status < 0 or status == EXIT_STOPPED):
            outcome, code, reason = "stopped", EXIT_STOPPED, None
        elif status == 0:
            outcome, code = "completed", 0
        elif status == EXIT_STOPPED:
            outcome, code = "stopped", EXIT_STOPPED
        elif status < 0:
            outcome, code, reason = "failed", 1, self.killed_message(-status)
            self._exit_record.report_problem("supervisor-lost", reason, _KILLED_ADVICE)
        else:
            outcome, code = "failed", status if status in (1, 2, 3) else 1
            if reason is None:
                reason = phrase(
                    "The run's supervisor exited with status {status}: see logs/supervisor.*.err.",
                    status=status,
                )
                self._exit_record.report_problem("supervisor-lost", reason)
        if status < 0:
            self._exit_record.report_end(outcome, code)
        self._exit_record.write(outcome, code, reason)
        _log.info("run ended: %s, exit code %d", outcome, code)
        with contextlib.suppress(OSError):
            os.unlink("control.sock", dir_fd=self._folder)

    def end_after_removal(self) -> None:
        """Do nothing: without its directory the run has no exit record."""

    def _reason(self) -> str | None:
        reason = self._supervisor_report().get("reason")
        return reason if isinstance(reason, str) else None

    def _supervisor_report(self) -> dict[str, object]:
        """Return the supervisor's report from its pipe; empty if there is none."""
        try:
            report = json.loads(self._report_bytes)
        except (ValueError, RecursionError):
            return {}
        return report if isinstance(report, dict) else {}

    def report_lost_save(self) -> None:
        """Report an incomplete checkpoint if a save marker shows that the run ended during a save."""
        if was_save_interrupted(self._run):
            self._exit_record.report_problem(
                "save-lost",
                phrase("The run ended while it was saving a checkpoint: that incomplete checkpoint is lost."),
                phrase(
                    "Earlier checkpoints are intact. To let a save finish, stop the run only once, "
                    "without --now."
                ),
                severity="warning",
            )
