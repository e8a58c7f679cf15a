"""What is known of this process: which rank it is, what was seen, which parts are off; and where lines go.

A process is a rank once it steps an optimizer (`begin`): its file is claimed then, and a thread writes down
every quarter of a second what has come together. Until then events wait here, but for what the script logs
(`logs`): that goes into the file of the rank that this process would be, which is held only while lines are
written, so that who trains has it. A forked child knows nothing of what its parent was. Read steps.py next,
which decides what a step is.

For parts: `emit`, `see`, `beat`, `guarded`, `switch_off`, and lists of functions to call:

    on_begin(optimizer)          this process is a rank now
    on_leading(optimizer)        from now on this one leads
    on_backward(tensors)         an outermost backward begins
    on_sampled_step(optimizer)   a sampled step of the leading optimizer has ended
    on_tick()                    in the thread, and at the end
    on_fork()                    in a child: forget
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections import deque
from functools import wraps

from . import process_title
from .heartbeats import HeartbeatSlot
from .writer import RankFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TICK_S = 0.25
_MAX_EARLY_EVENTS = 1000
_JOIN_TIMEOUT_S = 0.5
_COUNTER_FACTS = {"skipped", "other_optimizers", "same_epochs"}
"""Facts that change all the time: by themselves they are told every few seconds, and at the end."""
_COUNTER_INTERVAL_S = 5.0


class RankSession:
    """One process of the run. `rank` is None until it has stepped an optimizer; `step` is its last step."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.run = environment["RANKDECK_RUN"]
        self.attempt = int(environment.get("RANKDECK_ATTEMPT") or 0)
        self.level = environment.get("RANKDECK_OBSERVE") or "light"
        self._heartbeat_page = environment.get("RANKDECK_HEARTBEAT")
        self.on_rank_start: list[Callable[[Any], None]] = []
        self.on_sampled_step: list[Callable[[Any], None]] = []
        self.on_backward: list[Callable[[Any], None]] = []
        self.on_leader_chosen: list[Callable[[Any], None]] = []
        self.on_tick: list[Callable[[], None]] = []
        self.on_fork: list[Callable[[], None]] = []
        self.disabled_parts: dict[str, str] = {}
        self.stack_signal: int | None = None
        self.losses: Any = None
        """What backward was called on; None where that part is off."""
        self.metric_buffer: Any = None
        """What the script has logged (metrics.py)."""
        self._reset()
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork_in_child)
        atexit.register(self.end)

    def _reset(self) -> None:
        self.rank: int | None = None
        self.world_size: int | None = None
        self.step = 0
        self.is_step_sampled = True
        """Whether the step that runs now is one that is looked at closely."""
        self.num_outermost_steps = 0
        """Outermost steps of any optimizer."""
        self.first_step = 0
        """The step that an earlier process of this rank has come to."""
        self.active_since: float | None = None
        """When the first batch was asked for, or backward first ran (time.perf_counter)."""
        self.is_ending = False
        self.waited_s = 0.0
        self.samples: int | None = None
        """Of all training batches so far whose backward has run; None where no loader tells."""
        self.has_tracked_step = False
        """Whether a step was followed operation by operation (full_observation.py): CPU owners say less."""
        self.models: list[Any] = []
        """Weak references of the modules that are trained, outermost first."""
        self.optimizers: list[Any] = []
        """Weak references of the optimizers that have stepped, inner ones too."""
        self.facts: dict[str, Any] = {}
        self._file: RankFile | None = None
        self._logging_file: RankFile | None = None
        """Where a process that has not stepped writes what it logs."""
        self._early_events: deque[tuple[str, dict[str, object]]] = deque(maxlen=_MAX_EARLY_EVENTS)
        self._reported_facts: dict[str, object] | None = None
        self._reported_at = 0.0
        self._heartbeat: HeartbeatSlot | None = None
        self._thread: threading.Thread | None = None
        self._thread_lock = threading.Lock()
        self._has_finalizer = False
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._open_heartbeat_of_started_rank()

    # What parts use.

    def emit(self, kind: str, **fields: Any) -> None:
        """Append an event; before this process is a rank it waits, and is lost if it never becomes one."""
        file = self._file
        if file is None:
            self._early_events.append((kind, fields))
        else:
            file.write(kind, {"rank": file.rank, **fields})

    def record_facts(self, **facts: Any) -> None:
        """Facts of events.Observed; told again, whole, when one has changed."""
        self.facts.update(facts)

    def beat(self, phase: str) -> None:
        """This process is alive, and in `phase` of the step after `step`."""
        heart = self._heartbeat
        if heart is not None:
            heart.beat(self.step, phase)

    def disable_part(self, part: str, error: BaseException | str) -> None:
        """That part is off from now on; the first reason is told."""
        if not isinstance(error, str):
            error = "%s: %s" % (type(error).__name__, error)
        self.disabled_parts.setdefault(part, error[:300])

    def wrap_part(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` until it fails for the first time; from then on it does nothing."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if part not in self.disabled_parts:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    self.disable_part(part, error)
            return None

        return call

    # How it lives.

    @property
    def is_writing(self) -> bool:
        """Whether this process is a rank whose lines are written down."""
        return self._file is not None and self._thread is not None

    def start_rank(self, optimizer: Any) -> None:
        """The first step of this process: from now on it is a rank."""
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
        for function in self.on_rank_start:
            function(optimizer)
        devices, uuids = self.wrap_part("devices", _devices)(optimizer, file.rank) or ([file.rank], [])
        started = {"rank": file.rank, "pid": os.getpid(), "devices": devices, "uuids": uuids}
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
        """The script has logged something, which is written down whether or not it ever steps."""
        if self._thread is None:
            self._ensure_thread()

    def _claim_file(self) -> tuple[RankFile, int | None]:
        """The file of the rank that this process is, and how many ranks its process group has."""
        rank, world_size = _rank_and_world_size()
        num_ranks = max(world_size or 1, _env_int("WORLD_SIZE", 1))
        return RankFile(os.path.join(self.run, "events"), rank, self.attempt, num_ranks), world_size

    def tick(self, wait_s: float = -1) -> None:
        """Write down what has come together, unless somebody does so for longer than `wait_s`."""
        if not self._lock.acquire(timeout=wait_s):
            return
        try:
            if self._file is not None:
                for function in self.on_tick:
                    function()
                self._report_facts()
            elif self.metric_buffer is not None:
                self._write_logged()
        finally:
            self._lock.release()

    def _write_logged(self) -> None:
        told = self.metric_buffer.take(self.is_ending)
        if not told:
            return
        file = self._logging_file
        if file is None or not file.resume():
            if file is not None:
                file.close()
            file, _ = self._claim_file()
            self._logging_file = file
        for columns in told:
            file.write("metric", {"rank": file.rank, **columns._asdict()})
        if self.disabled_parts:
            file.write(
                "observed", {"rank": file.rank, "script": _script_path(), "parts": dict(self.disabled_parts)}
            )
        file.release()

    def end(self) -> None:
        """What is left is written; why the process ends is its supervisor's to say."""
        self.is_ending = True
        self._stop_thread()
        self._final_tick()
        file = self._file
        if file is not None and file.num_dropped:
            # The file cannot say it: see base/heartbeat.py.
            self.beat("finished, lost %d %d" % (min(file.num_dropped, 99_999), file.error_number))
        self.is_ending = False

    def _report_facts(self) -> None:
        facts = dict(self.facts)
        facts["script"] = _script_path()
        facts["parts"] = dict(self.disabled_parts)
        told, now = self._reported_facts or {}, time.monotonic()
        names = facts.keys() | told.keys()
        changed = {name for name in names if name not in told or facts.get(name) != told[name]}
        if changed - _COUNTER_FACTS or (
            changed and (self.is_ending or now - self._reported_at >= _COUNTER_INTERVAL_S)
        ):
            self._reported_facts, self._reported_at = facts, now
            self.emit("observed", **facts)

    def _ensure_thread(self) -> None:
        with self._thread_lock:
            if self._thread is not None:
                return
            self._stop = threading.Event()
            thread = threading.Thread(
                target=self._run_thread, args=(self._stop,), name="rankdeck", daemon=True
            )
            thread.start()
            self._thread = thread
            helpers = sys.modules.get("multiprocessing.util")
            if helpers is not None and not self._has_finalizer:
                # A process that multiprocessing has forked ends without atexit.
                self._has_finalizer = True
                helpers.Finalize(None, self.end, exitpriority=0)

    def _run_thread(self, stop: threading.Event) -> None:
        # Signals are the script's, and where it has blocked them they wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not stop.wait(TICK_S):
            try:
                self.tick()
            except Exception as error:
                self.disable_part("writing", error)

    def _before_fork(self) -> None:
        """Without the thread, and with nothing left to write: before a fork, which copies one thread only."""
        if self._stop_thread():
            self._final_tick()

    def _stop_thread(self) -> bool:
        """False where there is none."""
        thread, self._thread = self._thread, None
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
            for function in self.on_fork:
                function()
        except Exception as error:
            self.disable_part("fork", error)

    def _open_heartbeat(self, rank: int) -> None:
        if self._heartbeat_page and rank is not None:
            try:
                self._heartbeat = HeartbeatSlot(self._heartbeat_page, rank)
            except (OSError, ValueError) as error:
                self.disable_part("heartbeats", error)

    def _open_heartbeat_of_started_rank(self) -> None:
        """What the supervisor started itself beats before its first step too; what scripts start does not."""
        parts = (self._heartbeat_page or "").split("/")
        if len(parts) > 2 and parts[2] == str(os.getppid()):
            self._open_heartbeat(_env_int("RANK", 0))
            process_title.set_process_name(
                "rank %d/%d" % (_env_int("RANK", 0), _env_int("WORLD_SIZE", 1)), self.run
            )


def _env_int(name: str, without: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return without


def _rank_and_world_size() -> tuple[int, int | None]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return _env_int("RANK", 0), None


def _devices(optimizer: Any, rank: int) -> tuple[list[int], list[str | None]]:
    """The devices that hold what is trained, and their uuids; on CPUs each rank has its own."""
    torch: Any = sys.modules["torch"]
    indices = sorted(
        {
            parameter.device.index or 0
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.device.type == "cuda"
        }
    )
    if not indices:
        return [rank], []
    uuids: list[str | None] = []
    for index in indices:
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        text = str(uuid)
        known = text.startswith(("GPU-", "MIG-"))
        uuids.append(None if uuid is None else text if known else "GPU-" + text)
    return indices, uuids


def _script_path() -> str:
    main = sys.modules.get("__main__")
    return getattr(main, "__file__", None) or (sys.argv[0] if sys.argv else "")


_session: RankSession | None = None


def current() -> RankSession:
    """This process's session."""
    global _session
    if _session is None:
        _session = RankSession(dict(os.environ))
    return _session
