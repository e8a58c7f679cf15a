"""One thread per virtual device, so that parallel_apply and its backward pass run concurrently, as on GPUs.

Each thread adopts the caller's grad mode, autocast settings and dispatch mode, such as FixedDraws; a ledger
that tracks the caller also tracks the thread. Each thread measures its own CPU time, which defines a virtual
device's utilization. The threads live until `close`.

Random numbers: host operations share one generator, so threads that draw concurrently would draw different
numbers in every run. Each device therefore has its own random state, and forward passes that draw numbers
take turns, each with its device's state. A forward pass draws numbers if it changes the generator's state: to
detect this, the first forward passes in each mode (training, evaluation) always take turns.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from rankdeck.base.errors import Problem, RankdeckError, TrainingError
from rankdeck.base.phrases import phrase
from rankdeck.memory.virtual import VirtualDevices
from rankdeck.profiling.spans import PhaseSpan, SpanRecorder
from rankdeck.torch_compat.dispatch import DispatchMode, top_mode

T = TypeVar("T")

# 2**64 divided by the golden ratio, so that the devices' seeds are far apart.
_STREAM_STRIDE = 0x9E3779B97F4A7C15
# Keeps seeds in the range that manual_seed accepts.
_SEED_MASK = 2**63 - 1


class ReplicaError(TrainingError):
    """An error that one replica raised. `replica` is its index, `__cause__` the original exception."""

    code = "replica-failed"

    def __init__(self, replica: int, cause: BaseException) -> None:
        message = phrase(
            "Replica {replica} (virtual device {replica}) raised {kind}: {cause}",
            replica=replica,
            kind=type(cause).__name__,
            cause=cause,
        )
        problem = cause.problem if isinstance(cause, RankdeckError) else Problem(self.code, message)
        super().__init__(
            message,
            advice=problem.advice
            or phrase("The first traceback shows where in the model the error occurred."),
            path=problem.path,
            changes=problem.cure,
        )
        self.replica = replica


class ReplicaThreads:
    """Pool with one thread, random state and busy time per device. Close it, or use it as a context manager.

    While a ledger is tracking, replicas take turns, so that the devices allocate in the same order, and the
    sum of all devices' bytes is the same, in every run. The bytes of a single device do not depend on this.
    """

    def __init__(self, devices: VirtualDevices, spans: SpanRecorder | None = None) -> None:
        self.devices = devices
        self.spans = spans or SpanRecorder()
        self.lead_phase: PhaseSpan | None = None
        """Device 0's phase between `start_lead_phase` and `end_lead_phase`, else None."""
        self.busy_s = [0.0] * devices.num_devices
        """CPU seconds that each device has used so far, excluding torch's own thread pool."""
        self.random_states: list[Tensor | None] = [None] * devices.num_devices
        """Random state per device: always None for device 0, which uses the process's state; None for other
        devices until their first draw."""
        self._draws_random: dict[bool, bool] = {}
        self._has_drawn = False
        self._lock = threading.Lock()
        # The devices share torch's threads: if each used all of them, the cores would be oversubscribed.
        share = max(1, torch.get_num_threads() // devices.num_devices)
        self._threads = [
            ThreadPoolExecutor(1, f"device-{i}", torch.set_num_threads, (share,))
            for i in range(devices.num_devices)
        ]

    def __enter__(self) -> ReplicaThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads after their current jobs. Closing twice is harmless."""
        for thread in self._threads:
            thread.shutdown(wait=True)

    def run(self, jobs: Sequence[Callable[[], T]], phase: str = "forward") -> list[T]:
        """Run job i on device i, all jobs concurrently, and return the results; `phase` names the work.

        Raises:
            ReplicaError: for the first job that raised; all jobs have ended by then.
        """
        futures = [self._submit(device, job, phase) for device, job in enumerate(jobs)]
        # Wait for all first: an error must not leave other replicas running.
        wait(futures)
        return [_result(device, future) for device, future in enumerate(futures)]

    def run_sequentially(self, jobs: Sequence[Callable[[], T]], phase: str) -> list[T]:
        """Run job i on device i, one job after another, each with its device's random state.

        Raises:
            ReplicaError: for the first job that raised; later jobs have not run.
        """
        results = []
        for device, job in enumerate(jobs):
            with self._use_random_state(device):
                results.append(_result(device, self._submit(device, job, phase)))
        return results

    def run_forwards(self, jobs: Sequence[Callable[[], T]], *, training: bool) -> tuple[list[T], bool]:
        """Run the replicas' forward passes concurrently, or in turn if they draw random numbers in this mode
        (training or evaluation).

        Return their results, and whether the backward passes have to take turns as well: there, activation
        checkpointing draws the numbers again.
        """
        self._has_drawn = False
        in_turn = self.devices.ledger.is_tracking
        if in_turn or self._draws_random.get(training, True):
            results = self.run_sequentially(jobs, "forward")
        else:
            with self._detect_draws():
                results = self.run(jobs, "forward")
        self._draws_random[training] = self._has_drawn or self._draws_random.get(training, False)
        return results, in_turn or self._draws_random[training]

    @contextmanager
    def count_busy(self, device: int) -> Iterator[None]:
        """Enter a context in which the calling thread's CPU time counts as busy time of `device`, for example
        during device 0's loss and optimizer step."""
        started_s = time.thread_time()
        try:
            yield
        finally:
            with self._lock:
                self.busy_s[device] += time.thread_time() - started_s

    @contextmanager
    def transfer_phase(self, name: str) -> Iterator[None]:
        """Enter a context that records a phase of device 0, and the number of bytes transferred between
        devices in that phase."""
        with self.spans.phase(0, name) as mark:
            before = sum(self.devices.moved_bytes.values())
            yield
            if mark is not None:
                mark.num_bytes = sum(self.devices.moved_bytes.values()) - before or None

    def start_lead_phase(self, name: str) -> None:
        """Start a phase of device 0 in the calling thread. Autograd later calls `end_lead_phase`, which ends
        the phase."""
        self.lead_phase = self.spans.start(0, name)

    def end_lead_phase(self) -> None:
        self.spans.stop(self.lead_phase)
        self.lead_phase = None

    def _submit(self, device: int, job: Callable[[], T], phase: str) -> Future[T]:
        enter = _capture_thread_settings()

        def work() -> T:
            with self.count_busy(device), ExitStack() as stack:
                enter(stack)
                stack.enter_context(self.devices.ledger.on_device(device))
                stack.enter_context(self.spans.phase(device, phase))
                return job()

        return self._threads[device].submit(work)

    @contextmanager
    def _detect_draws(self) -> Iterator[None]:
        with self.devices.ledger.paused():
            before = torch.get_rng_state()
        yield
        with self.devices.ledger.paused():
            self._has_drawn = self._has_drawn or not _is_same_state(before, torch.get_rng_state())

    @contextmanager
    def _use_random_state(self, device: int) -> Iterator[None]:
        """Enter a context in which the process's generator has the device's state; restore the process's own
        state afterwards."""
        if device == 0:
            with self._detect_draws():
                yield
            return
        with self.devices.ledger.paused():
            of_process = torch.get_rng_state()
            device_state = self.random_states[device]
            before = _initial_random_state(device) if device_state is None else device_state
            torch.set_rng_state(before)
        try:
            yield
        finally:
            with self.devices.ledger.paused():
                after = torch.get_rng_state()
                if not _is_same_state(before, after):
                    self._has_drawn = True
                    self.random_states[device] = after
                torch.set_rng_state(of_process)


def _is_same_state(first: Tensor, second: Tensor) -> bool:
    """Check whether two random states are equal, without using torch: in planning, torch computes no
    values."""
    return ctypes.string_at(first.data_ptr(), first.nbytes) == ctypes.string_at(
        second.data_ptr(), second.nbytes
    )


def _initial_random_state(device: int) -> Tensor:
    seed = (torch.initial_seed() + device * _STREAM_STRIDE) & _SEED_MASK
    return torch.Generator().manual_seed(seed).get_state()


def _capture_thread_settings() -> Callable[[ExitStack], None]:
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    cache = torch.is_autocast_cache_enabled()
    mode = top_mode()

    def enter(stack: ExitStack) -> None:
        following = mode.worker_mode() if isinstance(mode, DispatchMode) else None
        if following is not None:
            stack.enter_context(following)
        # Before the grad mode, because entering inference_mode sets that too.
        stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(grad))
        stack.enter_context(torch.autocast("cpu", dtype, enabled=autocast, cache_enabled=cache))

    return enter


def _result(device: int, future: Future[T]) -> T:
    cause = future.exception()
    if cause is not None:
        raise ReplicaError(device, cause) from cause
    return future.result()
