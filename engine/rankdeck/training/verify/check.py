"""Check before the first step, on every rank, that a strategy computes the same as one device.

    rank 0    take two steps on one device, and time them: is there time for whole batches?
    all       build the strategy
    all       take two steps under the strategy
    rank 0    compare the results, and find the cause of differences
    all       receive the result of the check

Between these stages rank 0 checks the budget (budget.py) and decides for all ranks: if time runs out, only
one step is compared, or nothing, and the result records this. before_run.py handles the result; read it next.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist

from rankdeck.base.errors import RankdeckError
from rankdeck.base.heartbeat import CHECK_BUILD
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.data.randomness import preserve_random_states
from rankdeck.parallel.fsdp.meta_init import build_on_meta
from rankdeck.parallel.tensor.split_plan import ModelAnalysis
from rankdeck.training.parity_notes import has_batch_norm
from rankdeck.training.verify.budget import CheckBudget
from rankdeck.training.verify.causes import Discrepancy, find_cause
from rankdeck.training.verify.check_errors import (
    CheckStopError,
    UncheckableError,
    run_with_retry,
    training_error_text,
)
from rankdeck.training.verify.compare import StepResults, decisive_step, is_finite
from rankdeck.training.verify.compared_samples import UNREPEATABLE_DATA, UnrepeatableDataError
from rankdeck.training.verify.draws import FixedDraws
from rankdeck.training.verify.one_device import OneDevice, OutOfTimeError
from rankdeck.training.verify.scope import NUM_STEPS, CheckScope, make_scope, min_layers
from rankdeck.training.verify.trial import StrategyTrial
from rankdeck.training.workload import Workload

_MAX_FULL_BATCH_S = 0.3
"""Time limit for two steps over whole batches; if they take longer, smaller batches are compared."""
_STRATEGY_TIME_FACTOR = 1.5
"""Estimated step time under the strategy, as a multiple of (one device's step time / number of devices)."""
_SECOND_CHECK_FACTOR = 1.25
"""Estimated time of a second comparison, relative to the first: one device may then compute in slices."""
_FIRST_STEP_EXTRA_S = 0.3  # maximum extra time of a process's first step
_COMPARED_WEIGHTS_PER_S = 5e7
_MEMORY_SHARE = 0.5
_NUM_COPIES = 6  # tensors of the weights' size: gradients, optimizer state, results to compare
_MAX_FP64_WEIGHTS = 50_000_000
_HALF_PRECISIONS = ("bf16", "fp16")  # compared in a wider one first, where rounding hides little


@dataclass(frozen=True)
class CheckResult:
    """Result of the check. `skip_reason` is the reason if nothing was compared.

    If something was compared, `finding` holds the differences from one device (None if there are none), and
    `max_difference` is the largest difference of any weight after `num_steps` steps, for a model with at most
    `max_layers` layers of each kind. `uses_random`: the model or the optimizer draws random numbers, which
    were fixed for the comparison.
    """

    finding: Discrepancy | None = None
    skip_reason: Phrase | None = None
    max_difference: float | None = None
    precision: str | None = None
    num_samples: int = 0
    num_steps: int = NUM_STEPS
    max_layers: int | None = None
    excluded: tuple[str, ...] = ()
    uses_random: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class _ScopeChoice:
    """Arguments of `make_scope` in scope.py."""

    precision: str
    whole_batch: bool
    has_batch_norm: bool
    own_norms: bool = False
    max_layers: int | None = None


class _TooLargeError(CheckStopError):
    """The model does not fit in memory, or its steps take too long."""

    def __init__(self, reason: Phrase) -> None:
        super().__init__(reason)
        self.reason = reason


class EqualityCheck:
    """The check on one rank of a run on `num_devices` devices. If `is_full` is True, whole batches are
    compared, however long that takes. `analysis` holds findings about the model, as in assembly.py."""

    def __init__(
        self,
        workload: Workload,
        *,
        rank: int,
        world_size: int,
        devices: list[torch.device],
        num_devices: int,
        analysis: ModelAnalysis,
        is_full: bool = False,
        beat: Callable[[str], object] = lambda phase: None,
    ) -> None:
        self._workload = workload
        self._rank, self._world_size = rank, world_size
        self._devices, self._num_devices = devices, num_devices
        self._analysis, self._is_full, self._beat = analysis, is_full, beat
        self._draws = FixedDraws()
        self._one_device: dict[_ScopeChoice, OneDevice] = {}
        self._compare_s = 0.0
        self._num_weights = 0  # in the last model built
        self._budget = CheckBudget(has_limit=not is_full)
        self._started_s = time.perf_counter()

    def run(self) -> CheckResult:
        """Run the check on all ranks together. Raises: RankdeckError if the strategy refuses the workload."""
        with preserve_random_states():
            try:
                result = self._run_checks()
            except UnrepeatableDataError:
                result = CheckResult(skip_reason=UNREPEATABLE_DATA)
            return replace(result, seconds=time.perf_counter() - self._started_s)

    def _run_checks(self) -> CheckResult:
        precision = self._workload.config.train.precision
        chosen = self._broadcast(self._choose)
        if isinstance(chosen, Phrase):
            return CheckResult(skip_reason=chosen)
        # If one device's steps drew nothing, the ranks save the cost of intercepting operations.
        self._draws.is_idle = not self._broadcast(lambda: self._draws.has_drawn)
        result = self._check_scope(chosen)
        # The first comparison froze batch norms; this one compares them over slices.
        others = [replace(chosen, own_norms=True)] if "batch-norm" in result.excluded else []
        if precision in _HALF_PRECISIONS and chosen.precision != precision:
            others.append(replace(chosen, precision=precision))
        for other in others:
            is_equal = result.finding is None and result.skip_reason is None
            if is_equal and self._broadcast(self._has_time_for_another):
                again = self._check_scope(other)
                result = again if again.finding else result
        return result

    def _has_time_for_another(self) -> bool:
        return self._budget.allows(_SECOND_CHECK_FACTOR * self._budget.spent_s)

    @property
    def batch_split(self) -> tuple[int, int]:
        """Number of samples in a microstep of the run, and number of samples in one of its forward passes."""
        scope = self._scope(_ScopeChoice("fp64", whole_batch=True, has_batch_norm=False))
        microstep_samples = scope.batch_samples // self._workload.config.train.accumulate
        return microstep_samples, microstep_samples // (scope.num_shards * scope.num_forwards)

    def _broadcast(self, decide: Callable[[], Any]) -> Any:
        """Return rank 0's result of `decide` on all ranks. Raises: UnrepeatableDataError, on every rank."""
        try:
            decided = [decide() if self._rank == 0 else None]
        except UnrepeatableDataError as error:
            decided = [error]
        if self._world_size > 1:
            dist.broadcast_object_list(decided, src=0, device=self._devices[0])
        if isinstance(decided[0], UnrepeatableDataError):
            raise decided[0]
        return decided[0]

    def _scope(self, chosen: _ScopeChoice) -> CheckScope:
        return make_scope(self._workload, self._num_devices, **vars(chosen))

    def _choose(self) -> _ScopeChoice | Phrase:
        """Choose what to compare, or return why nothing can be compared."""
        try:
            return self._choose_scope(None)
        except _TooLargeError as error:
            self._one_device.clear()  # free the large model before a smaller one is tried
            with contextlib.suppress(_TooLargeError):
                if self._budget.allows(_FIRST_STEP_EXTRA_S):
                    fewer = self._choose_scope(min_layers(self._workload.config, self._num_devices))
                    return fewer if isinstance(fewer, _ScopeChoice) else error.reason
            return error.reason

    def _choose_scope(self, most_layers: int | None) -> _ScopeChoice | Phrase:
        """Choose what to compare, with at most `most_layers` layers of each kind. Raises: _TooLargeError."""
        run_precision = self._workload.config.train.precision
        chosen = _ScopeChoice(run_precision, whole_batch=False, has_batch_norm=False, max_layers=most_layers)
        build_model = self._scope(chosen).workload.build_model
        self._beat(CHECK_BUILD)
        try:
            model = run_with_retry(lambda: build_on_meta(build_model), self._budget)
        except UncheckableError as error:  # every rank will report it when it builds the model
            return training_error_text(error.error)
        num_weights = sum(weight.numel() for weight in model.parameters())
        self._compare_s = num_weights / _COMPARED_WEIGHTS_PER_S
        chosen = replace(chosen, has_batch_norm=has_batch_norm(model))
        del model
        is_smaller = num_weights != self._num_weights  # fewer layers may not have made the model smaller
        self._num_weights = num_weights
        if not (is_smaller and self._fits_in_memory(num_weights * 4)):
            why = phrase("Two steps of the model on one device do not fit in memory alongside the run.")
            raise _TooLargeError(why)
        failure: Exception | None = None
        is_small = num_weights <= _MAX_FP64_WEIGHTS and self._fits_in_memory(num_weights * 8)
        wide = "fp64" if is_small else "fp32" if run_precision in _HALF_PRECISIONS else run_precision
        for precision in dict.fromkeys((wide, run_precision)):
            for whole_batch in (True,) if self._is_full else (False, True):
                candidate = replace(chosen, precision=precision, whole_batch=whole_batch)
                try:
                    return run_with_retry(partial(self._fit_to_budget, candidate), self._budget)
                except UncheckableError as error:  # a model may raise anything for few samples, or in fp64
                    failure = error.error
        assert failure is not None
        if isinstance(failure, torch.OutOfMemoryError):
            raise _TooLargeError(training_error_text(failure))
        return training_error_text(failure)

    def _fits_in_memory(self, weight_bytes: int) -> bool:
        device = self._devices[0]
        if device.type == "cuda":
            free_bytes, _ = torch.cuda.mem_get_info(device)
            return weight_bytes * _NUM_COPIES < _MEMORY_SHARE * free_bytes
        # Virtual devices share the machine's memory with the steps of one device.
        num_copies = _NUM_COPIES * (1 + self._num_devices)
        return weight_bytes * num_copies < _MEMORY_SHARE * psutil.virtual_memory().available

    def _on_one_device(self, chosen: _ScopeChoice) -> OneDevice:
        if chosen not in self._one_device:
            scope, device = self._scope(chosen), self._devices[0]
            self._one_device[chosen] = OneDevice(scope, device, self._draws, self._budget, self._beat)
        return self._one_device[chosen]

    def _fit_to_budget(self, chosen: _ScopeChoice) -> _ScopeChoice:
        """Return `chosen`, changed to whole batches if there is time for them.

        Raises: _TooLargeError if there is not even time for `chosen`; any exception of the model.
        """
        one_device = self._on_one_device(chosen)
        one_device.try_slice()  # first, because a model may raise for so few samples
        scope, share = one_device.scope, self._relative_step_time
        times = scope.batch_samples / scope.num_samples

        def has_time_for_another(computed: StepResults) -> bool:
            step_s = computed.seconds[0]
            # The first step takes longer than those of the run, whose time must not be estimated too high.
            self._extend_budget(chosen, max(0.0, step_s - _FIRST_STEP_EXTRA_S) * times)
            return self._budget.allows(step_s * (1 + NUM_STEPS * share) + self._compare_s)

        steps_s = one_device.full_batches(has_time_for_another).seconds
        self._extend_budget(chosen, steps_s[-1] * times)
        if not self._budget.allows(share * sum(steps_s) + self._compare_s):
            why = phrase(
                "A step on one device takes {seconds} s, so a check would take more than 5 % of this run.",
                seconds=f"{steps_s[-1]:.1f}",
            )
            raise _TooLargeError(why)
        whole_s = NUM_STEPS * steps_s[-1] * times
        is_short = whole_s <= _MAX_FULL_BATCH_S and self._budget.allows((1 + share) * whole_s)
        if scope.is_full_batch or not is_short:
            return chosen
        chosen = replace(chosen, whole_batch=True)
        self._on_one_device(chosen).full_batches()
        return chosen

    @property
    def _relative_step_time(self) -> float:
        return _STRATEGY_TIME_FACTOR / self._num_concurrent

    @property
    def _num_concurrent(self) -> int:
        if self._devices[0].type == "cpu":
            return min(self._num_devices, len(os.sched_getaffinity(0)))
        return self._num_devices

    def _extend_budget(self, chosen: _ScopeChoice, step_s: float) -> None:
        """Extend the budget to match the run's minimum time; one device takes `step_s` for a whole batch."""
        # A wider precision may take twice as long as the run's own.
        is_doubled = chosen.precision != self._workload.config.train.precision
        run_s = self._workload.steps * step_s / self._num_concurrent / (2 if is_doubled else 1)
        self._budget.extend_for_run(run_s)

    def _check_scope(self, chosen: _ScopeChoice) -> CheckResult:
        scope = self._scope(chosen)
        # Findings about fewer blocks, or other classes, do not apply to the run's model.
        is_changed = chosen.max_layers is not None or "batch-norm" in scope.excluded
        try:
            trial = StrategyTrial(
                scope.workload,
                rank=self._rank,
                world_size=self._world_size,
                devices=self._devices,
                analysis=ModelAnalysis() if is_changed else self._analysis,
                beat=self._beat,
            )
        except RankdeckError as error:
            # Options may name removed layers, on every rank; a factory may raise on this rank alone.
            if chosen.max_layers is None or error is scope.workload.build_error:
                raise
            why = phrase("The comparison cannot use a model with fewer layers: {why}", why=error.message)
            return CheckResult(skip_reason=why)
        try:
            return self._compare_trial(chosen, trial)
        finally:
            trial.close()
            del trial
            gc.collect()  # free this strategy's memory before the run builds its own

    def _compare_trial(self, chosen: _ScopeChoice, trial: StrategyTrial) -> CheckResult:
        too_long: Phrase | None = self._broadcast(lambda: self._time_limit_text(chosen))
        if too_long is not None:
            return CheckResult(skip_reason=too_long)
        shared = self._broadcast(lambda: self._on_one_device(chosen).samples.shared_batches())
        has_time = partial(self._has_time_for_second, chosen)
        trial.run(self._draws, shared, lambda: bool(self._broadcast(has_time)))
        computed, scope = trial.computed, self._scope(chosen)
        trial.gather(decisive_step(chosen.precision, len(computed.losses)))
        result: CheckResult | None = self._broadcast(lambda: self._compare_results(chosen, computed))
        if result is None:
            trial.gather_rest()
            result = self._broadcast(lambda: self._explain(chosen, computed))
        assert result is not None
        return replace(
            result,
            precision=chosen.precision,
            num_samples=scope.num_samples,
            num_steps=len(computed.losses),
            max_layers=chosen.max_layers,
            excluded=scope.excluded,
        )

    def _time_limit_text(self, chosen: _ScopeChoice) -> Phrase | None:
        """Return a message if building the strategy left no time for a step; None if there is time."""
        self._built_s = self._budget.spent_s
        if self._budget.allows(self._step_s(chosen) + self._compare_s):
            return None
        return phrase(
            "Building the strategy took {seconds} s, so a check would take more than 5 % of this run.",
            seconds=f"{self._built_s:.1f}",
        )

    def _step_s(self, chosen: _ScopeChoice) -> float:
        return self._relative_step_time * self._reference_results(chosen).seconds[-1]

    def _reference_results(self, chosen: _ScopeChoice) -> StepResults:
        """Return one device's results; batch norms are frozen if they see only slices under the strategy."""
        return self._on_one_device(replace(chosen, own_norms=False)).full_batches()

    def _has_time_for_second(self, chosen: _ScopeChoice) -> bool:
        """Check whether one device took a second step and time is left for the strategy's second step."""
        has_both = len(self._reference_results(chosen).losses) == NUM_STEPS
        took_s = self._budget.spent_s - self._built_s
        return has_both and self._budget.allows(min(took_s, self._step_s(chosen)) + self._compare_s)

    def _compare_results(self, chosen: _ScopeChoice, computed: StepResults) -> CheckResult | None:
        """Compare `computed` with one device's results; return None if there is a difference to explain."""
        one_device = self._on_one_device(chosen)
        one_device.num_steps = len(computed.losses)
        if not is_finite(self._reference_results(chosen)):
            why = phrase("On one device, the loss or a weight becomes NaN or infinite within two steps.")
            return CheckResult(skip_reason=why)
        expected = self._expected_results(one_device)
        if expected is None:
            return CheckResult(
                skip_reason=phrase("Batch norms normalize over slices that one device cannot reproduce.")
            )
        comparison = one_device.compare(expected, computed)
        if comparison.is_equal:
            return CheckResult(max_difference=comparison.max_difference, uses_random=self._draws.has_drawn)
        if self._draws.has_missed:
            why = phrase("The model draws random numbers that cannot be reproduced for a comparison.")
            return CheckResult(skip_reason=why)
        return None

    def _explain(self, chosen: _ScopeChoice, computed: StepResults) -> CheckResult:
        one_device = self._on_one_device(chosen)
        expected = self._expected_results(one_device)
        assert expected is not None
        finding = find_cause(expected, computed, one_device)
        largest = one_device.compare(expected, computed).max_difference
        return CheckResult(finding, max_difference=largest, uses_random=self._draws.has_drawn)

    def _expected_results(self, one_device: OneDevice) -> StepResults | None:
        """Return the results that the strategy should compute; None if they cannot be computed in time."""
        with contextlib.suppress(OutOfTimeError):
            return one_device.expected()
        return None
