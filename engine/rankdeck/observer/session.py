"""State of the observed process: its rank, recorded facts, disabled parts, and its event file.

A process becomes a rank when it first steps an optimizer (`start_rank`). It then claims its file, and a
thread writes the collected events every quarter of a second. Before that, events wait in memory. Only logged
values (`on_log`) are written earlier, into the file of the rank that this process would become; that file is
locked only during a write, so that a training process can claim it. A forked child starts with no state. Read
steps.py next, which defines a step.

Parts use `emit`, `record_facts`, `report_anomaly`, `beat`, and what hooks.py offers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections import deque

from . import process_title
from .heartbeats import HeartbeatSlot
from .hooks import PartHooks
from .process_facts import devices, env_int, rank_and_world_size, script_path
from .writer import RankFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TICK_S = 0.25
_MAX_EARLY_EVENTS = 1000
_MAX_ANOMALIES, _MAX_NAMES, _MAX_NAME = 64, 8, 200
# Neither a fork nor the exit may wait long for a thread that hangs on a slow disk.
_JOIN_TIMEOUT_S = 0.5
_COUNTER_FACTS = {"skipped", "other_optimizers", "same_epochs"}
"""Fields of events.Observed that change all the time; if no other field has changed, the event is reported
only every few seconds and at the end."""
_COUNTER_INTERVAL_S = 5.0


class RankSession(PartHooks):
    """The observer's state in one process. `rank` is None until the process steps an optimizer; `step` is the
    number of the last finished step."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__()
        self.run = environment["RANKDECK_RUN"]
        self.attempt = int(environment.get("RANKDECK_ATTEMPT") or 0)
        self.level = environment.get("RANKDECK_OBSERVE") or "light"
        self.is_checked = self.level == "check"
        """Whether every check runs at every step, although that slows the script down."""
        self.tracks_operations = self.level in ("full", "check")
        """Whether the outputs of all modules are examined and the memory of a few steps is tracked."""
        self._heartbeat_page = environment.get("RANKDECK_HEARTBEAT")
        self.stack_signal: int | None = None
        self.losses: Any = None
        """The LossTracker; None if losses are not tracked."""
        self.order: Any = None
        """The StepOrder; None if the order of calls is not checked."""
        self.modes: Any = None
        """The ModeChecks; None if modes are not checked."""
        self.schedules: Any = None
        """The ScheduleChecks; None if schedulers are not checked."""
        self.resume: Any = None
        """The ResumeChecks; None if loaded files are not checked."""
        self.finite: Any = None
        """The FiniteChecks; None if losses and gradients are not checked for NaN and infinity."""
        self.tracker: Any = None
        """The MemoryTracker; None if no steps are tracked operation by operation."""
        self.metric_buffer: Any = None
        """Values that the script logged (metrics.py)."""
        self._reset()
        # A fork copies only the calling thread, and a lock that the writer thread holds would stay locked.
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork_in_child)
        atexit.register(self.end)

    def _reset(self) -> None:
        self.rank: int | None = None
        self.world_size: int | None = None
        self.step = 0
        self.is_step_sampled = True
        """Whether the current step is observed in detail."""
        self.num_requested_samples = 0
        """Number of upcoming steps that are sampled on request."""
        self.num_outermost_steps = 0
        """Number of outermost steps of all optimizers."""
        self.first_step = 0
        """Number of the last step that an earlier process of this rank recorded; 0 if there was none."""
        self.active_since: float | None = None
        """Time of the first batch request or the first backward pass (time.perf_counter)."""
        self.is_ending = False
        self.waited_s = 0.0
        self.synced_bytes = 0
        """Bytes passed to collectives since the last step (weight_digests.py resets this count)."""
        self.samples: int | None = None
        """Number of samples in all training batches that a backward pass has used; None if no loader is
        observed."""
        self.has_tracked_step = False
        """Whether a step was tracked operation by operation (full_observation.py). From then on, readings of
        the owners' memory on a CPU, which are less complete, are not reported."""
        self.models: list[Any] = []
        """Weak references to the trained modules, outermost first."""
        self.reduced_ids: Any = weakref.WeakKeyDictionary()
        """DistributedDataParallel -> ids of the parameters that required gradients when it was created."""
        self.optimizers: list[Any] = []
        """Weak references to the optimizers that have stepped, including inner ones."""
        self.last_optimizer: Any = None
        """Weak reference to the optimizer that stepped last."""
        self.scaler: Any = None
        """Weak reference to the gradient scaler that stepped last; None if there is none."""
        self.facts: dict[str, Any] = {}
        self._anomalies: set[tuple[str, str]] = set()
        self._file: RankFile | None = None
        self._logging_file: RankFile | None = None
        """File for the logged values of a process that has not stepped an optimizer."""
        self._early_events: deque[tuple[str, dict[str, object]]] = deque(maxlen=_MAX_EARLY_EVENTS)
        self._reported_facts: dict[str, object] | None = None
        self._reported_at = 0.0
        self._heartbeat: HeartbeatSlot | None = None
        self.writer_thread: threading.Thread | None = None
        self._thread_lock = threading.Lock()
        self._has_finalizer = False
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._open_heartbeat_of_started_rank()

    # The interface for parts.

    def emit(self, kind: str, **fields: Any) -> None:
        """Append an event. The event waits until the process becomes a rank, and is lost if that never
        happens."""
        file = self._file
        if file is None:
            self._early_events.append((kind, fields))
        else:
            file.write(kind, {"rank": file.rank, **fields})

    def pause_tracking(self) -> Any:
        """Return a context in which the memory ledger observes nothing; modes of the script stay active."""
        return contextlib.nullcontext() if self.tracker is None else self.tracker.pause()

    def record_facts(self, **facts: Any) -> None:
        """Record fields of events.Observed; whenever one changes, the whole event is reported again."""
        self.facts.update(facts)

    def report_anomaly(
        self, code: str, *, names: Any = (), step: int | None = None, line: str = "", **numbers: float
    ) -> None:
        """Report an anomaly in the script (events.Anomaly), once for each pair of code and first name."""
        names = [str(name)[:_MAX_NAME] for name in names]
        key = code, names[0] if names else ""
        if key not in self._anomalies and len(self._anomalies) < _MAX_ANOMALIES:
            self._anomalies.add(key)
            num_names = len(names)
            self.emit(
                "anomaly",
                code=code,
                step=self.step if step is None else step,
                line=line,
                names=names[:_MAX_NAMES],
                numbers={"names": num_names, **numbers},
            )

    def request_samples(self, number: int) -> None:
        """Sample `number` steps, starting with the current step."""
        self.is_step_sampled = True
        self.num_requested_samples = max(self.num_requested_samples, number - 1)

    def beat(self, phase: str) -> None:
        """Report that this process is alive, in `phase` of the step that follows the last finished step."""
        heartbeat = self._heartbeat
        if heartbeat is not None:
            heartbeat.beat(self.step, phase)

    # The life of the session: start, ticks, forks and end.

    def start_rank(self, optimizer: Any) -> None:
        """Make this process a rank, at its first optimizer step."""
        if self.rank is not None:
            self._ensure_thread()
            return
        self._stop_thread()
        if self._logging_file is not None:
            self._logging_file.close()
            self._logging_file = None
        file, world_size = self._claim_file()
        self.rank, self.world_size, self.first_step = file.rank, world_size, file.last_step
        self.step += file.last_step
        self._open_heartbeat(file.rank)
        self.on_rank_start.call(optimizer)
        indices, uuids = self.wrap_part("devices", devices)(optimizer, file.rank) or ([file.rank], [])
        started = {"rank": file.rank, "pid": os.getpid(), "devices": indices, "uuids": uuids}
        started.update(world_size=world_size, stack_signal=self.stack_signal)
        started.update(threads=self.wrap_part("threads", sys.modules["torch"].get_num_threads)())
        file.write("rank_started", started)
        self._file = file
        self._report_facts()
        while self._early_events:
            kind, fields = self._early_events.popleft()
            self.emit(kind, **fields)
        self._ensure_thread()

    def on_log(self) -> None:
        """Start the writer after the script has logged a value, even if the process never steps an
        optimizer."""
        if self.writer_thread is None:
            self._ensure_thread()

    def _claim_file(self) -> tuple[RankFile, int | None]:
        """Claim this rank's file; return (the file, the world size of the process group)."""
        rank, world_size = rank_and_world_size()
        num_ranks = max(world_size or 1, env_int("WORLD_SIZE", 1))
        return RankFile(os.path.join(self.run, "events"), rank, self.attempt, num_ranks), world_size

    def tick(self, wait_s: float = -1) -> None:
        """Write the collected events, unless another thread is still writing after `wait_s`."""
        if not self._lock.acquire(timeout=wait_s):
            return
        try:
            if self._file is not None:
                self.on_tick.call()
                self._report_facts()
            elif self.metric_buffer is not None:
                self._write_logged()
        finally:
            self._lock.release()

    def _write_logged(self) -> None:
        batches = self.metric_buffer.take(self.is_ending)
        if not batches:
            return
        file = self._logging_file
        if file is None or not file.resume():
            if file is not None:
                file.close()
            file, _ = self._claim_file()
            self._logging_file = file
        for columns in batches:
            file.write("metric", {"rank": file.rank, **columns._asdict()})
        if self.disabled_parts:
            file.write(
                "observed", {"rank": file.rank, "script": script_path(), "parts": dict(self.disabled_parts)}
            )
        file.release()

    def end(self) -> None:
        """Write the remaining events; the supervisor reports why the process ended."""
        self.is_ending = True
        self._stop_thread()
        self._final_tick()
        file = self._file
        if file is not None and file.num_dropped:
            # The file itself cannot hold this: see base/heartbeat.py.
            self.beat("finished, lost %d %d" % (min(file.num_dropped, 99_999), file.error_number))
        self.is_ending = False

    def _report_facts(self) -> None:
        facts = dict(self.facts)
        facts["script"] = script_path()
        facts["parts"] = dict(self.disabled_parts)
        reported, now = self._reported_facts or {}, time.monotonic()
        names = facts.keys() | reported.keys()
        changed = {name for name in names if name not in reported or facts.get(name) != reported[name]}
        if changed - _COUNTER_FACTS or (
            changed and (self.is_ending or now - self._reported_at >= _COUNTER_INTERVAL_S)
        ):
            self._reported_facts, self._reported_at = facts, now
            self.emit("observed", **facts)

    def _ensure_thread(self) -> None:
        with self._thread_lock:
            if self.writer_thread is not None:
                return
            self._stop = threading.Event()
            thread = threading.Thread(
                target=self._run_thread, args=(self._stop,), name="rankdeck", daemon=True
            )
            thread.start()
            self.writer_thread = thread
            helpers = sys.modules.get("multiprocessing.util")
            if helpers is not None and not self._has_finalizer:
                # A process that multiprocessing forked ends without running atexit functions.
                self._has_finalizer = True
                helpers.Finalize(None, self.end, exitpriority=0)

    def _run_thread(self, stop: threading.Event) -> None:
        # Signals belong to the script's threads; those that it has blocked must stay pending.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not stop.wait(TICK_S):
            try:
                self.tick()
            except Exception as error:
                self.disable_part("writing", error)

    def _before_fork(self) -> None:
        """Stop the thread and write all events before a fork, which copies only the calling thread."""
        if self._stop_thread():
            self._final_tick()

    def _stop_thread(self) -> bool:
        """Stop the thread; return False if there is none."""
        thread, self.writer_thread = self.writer_thread, None
        if thread is None:
            return False
        self._stop.set()
        if thread is not threading.current_thread():
            thread.join(_JOIN_TIMEOUT_S)
        return True

    def _final_tick(self) -> None:
        try:
            self.tick(_JOIN_TIMEOUT_S)
        except Exception as error:
            self.disable_part("writing", error)

    def _after_fork_in_child(self) -> None:
        try:
            for file in (self._file, self._logging_file):
                if file is not None:
                    file.close()
            self._reset()
            self.on_fork.call()
        except Exception as error:
            self.disable_part("fork", error)

    def _open_heartbeat(self, rank: int) -> None:
        if self._heartbeat_page and rank is not None:
            try:
                self._heartbeat = HeartbeatSlot(self._heartbeat_page, rank)
            except (OSError, ValueError) as error:
                self.disable_part("heartbeats", error)

    def _open_heartbeat_of_started_rank(self) -> None:
        """Start heartbeats even before the first step, if the supervisor itself started this process."""
        path_parts = (self._heartbeat_page or "").split("/")
        if len(path_parts) > 2 and path_parts[2] == str(os.getppid()):
            self._open_heartbeat(env_int("RANK", 0))
            process_title.set_process_name(
                "rank %d/%d" % (env_int("RANK", 0), env_int("WORLD_SIZE", 1)), self.run
            )


_session: RankSession | None = None


def current() -> RankSession:
    """Return this process's session."""
    global _session
    if _session is None:
        _session = RankSession(dict(os.environ))
    return _session
