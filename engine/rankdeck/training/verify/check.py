"""The check of equality before the first step, as every rank runs it.

    rank 0    two steps on one device: how long do they take, is there time for whole batches?
    all       build the strategy
    all       two steps under it
    rank 0    compares, and looks for the cause of what differs
    all       get the result

Between these rank 0 looks at the clock (budget.py) and decides for all: where time runs out only one step is
compared, or nothing, and the result says so. Read before_run.py next: what becomes of the result.
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
from rankdeck.data.randomness import kept
from rankdeck.parallel.fsdp.blank import model_on_meta
from rankdeck.parallel.tensor.split_plan import KnownModel
from rankdeck.training.sameness import has_batch_norm
from rankdeck.training.verify.budget import Budget
from rankdeck.training.verify.causes import Discrepancy, explain
from rankdeck.training.verify.compare import Computed, decisive_step, is_finite
from rankdeck.training.verify.compared_samples import UNREPEATABLE, UnrepeatableDataError
from rankdeck.training.verify.conditions import CheckStopError, UnfitError, tried_twice, untrained
from rankdeck.training.verify.draws import FixedDraws
from rankdeck.training.verify.one_device import OneDevice, OutOfTimeError
from rankdeck.training.verify.scope import NUM_STEPS, CheckedScope, fewest_layers, scope_of
from rankdeck.training.verify.trial import StrategyTrial
from rankdeck.training.workload import Workload

_WHOLE_BATCH_S = 0.3
"""Two steps over whole batches that take no longer are taken."""
_TIMES_SHARE = 1.5
"""What a step under the strategy takes, in times of a device's share of one device's."""
_TIMES_AGAIN = 1.25
"""What another comparison takes, in times of the first: one device may have to go slice by slice."""
_TO_BEGIN_S = 0.3
"""What the first step of a process takes more, at most."""
_COMPARED_WEIGHTS_PER_S = 5e7
_SHARE_OF_MEMORY = 0.5
_COPIES = 6
"""Of the weights: gradients, optimizer state, and what is kept to compare."""
_FP64_WEIGHTS = 50_000_000
_HALF = ("bf16", "fp16")
"""Compared in a wider precision first: rounding hides little there."""


@dataclass(frozen=True)
class Result:
    """What the check found. `unchecked` says why nothing was compared; else `finding` is what differs from
    one device, and `largest` is the largest difference of any weight after `num_steps` steps, of models with
    at most `most_layers` layers of a kind.

    `has_drawn`: the model or the optimizer draws random numbers, which were fixed for the comparison.
    """

    finding: Discrepancy | None = None
    unchecked: Phrase | None = None
    largest: float | None = None
    precision: str | None = None
    num_samples: int = 0
    num_steps: int = NUM_STEPS
    most_layers: int | None = None
    left_out: tuple[str, ...] = ()
    has_drawn: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class _Chosen:
    """As scope.py takes it."""

    precision: str
    whole_batch: bool
    has_batch_norm: bool
    own_norms: bool = False
    most_layers: int | None = None


class _TooLargeError(CheckStopError):
    """The model does not fit, or takes too long."""

    def __init__(self, reason: Phrase) -> None:
        super().__init__(reason)
        self.reason = reason


class EqualityCheck:
    """The check of one rank. `num_devices` are those of the run; a `full` one compares whole batches, however
    long that takes. `known` is what was found out about the model, as of assembly.py."""

    def __init__(
        self,
        workload: Workload,
        *,
        rank: int,
        world_size: int,
        devices: list[torch.device],
        num_devices: int,
        known: KnownModel,
        full: bool = False,
        beat: Callable[[str], object] = lambda phase: None,
    ) -> None:
        self._workload = workload
        self._rank, self._world_size = rank, world_size
        self._devices, self._num_devices = devices, num_devices
        self._known = known
        self._full = full
        self._beat = beat
        self._draws = FixedDraws()
        self._one_device: dict[_Chosen, OneDevice] = {}
        self._compare_s = 0.0
        self._num_weights = 0
        """Of the model that was built last."""
        self._budget = Budget(has_limit=not full)
        self._began_s = time.perf_counter()

    def run(self) -> Result:
        """Check, with all ranks together. Raises: RankdeckError where the strategy refuses."""
        with kept():
            try:
                result = self._checked()
            except UnrepeatableDataError:
                result = Result(unchecked=UNREPEATABLE)
            return replace(result, seconds=time.perf_counter() - self._began_s)

    def _checked(self) -> Result:
        own = self._workload.config.train.precision
        chosen = self._agree(self._choose)
        if isinstance(chosen, Phrase):
            return Result(unchecked=chosen)
        self._draws.idle = not self._agree(lambda: self._draws.has_drawn)
        result = self._check(chosen)
        others = [replace(chosen, own_norms=True)] if "batch-norm" in result.left_out else []
        if own in _HALF and chosen.precision != own:
            others.append(replace(chosen, precision=own))
        for other in others:
            is_equal = result.finding is None and result.unchecked is None
            if is_equal and self._agree(self._has_time_for_another):
                again = self._check(other)
                result = again if again.finding else result
        return result

    def _has_time_for_another(self) -> bool:
        return self._budget.has(_TIMES_AGAIN * self._budget.spent_s)

    @property
    def cut(self) -> tuple[int, int]:
        """(samples of a part of the run's batch, samples that one forward sees of them)."""
        scope = self._scope(_Chosen("fp64", whole_batch=True, has_batch_norm=False))
        part = scope.batch_samples // self._workload.config.train.accumulate
        return part, part // (scope.shards * scope.pieces)

    def _agree(self, decide: Callable[[], Any]) -> Any:
        """What rank 0 decides, on every rank. Raises: UnrepeatableDataError, on every rank."""
        try:
            decided = [decide() if self._rank == 0 else None]
        except UnrepeatableDataError as error:
            decided = [error]
        if self._world_size > 1:
            dist.broadcast_object_list(decided, src=0, device=self._devices[0])
        if isinstance(decided[0], UnrepeatableDataError):
            raise decided[0]
        return decided[0]

    def _scope(self, chosen: _Chosen) -> CheckedScope:
        return scope_of(self._workload, self._num_devices, **vars(chosen))

    def _choose(self) -> _Chosen | Phrase:
        """What is compared, or why nothing is."""
        try:
            return self._choose_among(None)
        except _TooLargeError as error:
            self._one_device.clear()
            with contextlib.suppress(_TooLargeError):
                if self._budget.has(_TO_BEGIN_S):
                    fewer = self._choose_among(fewest_layers(self._workload.config, self._num_devices))
                    return fewer if isinstance(fewer, _Chosen) else error.reason
            return error.reason

    def _choose_among(self, most_layers: int | None) -> _Chosen | Phrase:
        """With at most so many layers of a kind. Raises: _TooLargeError."""
        own = self._workload.config.train.precision
        chosen = _Chosen(own, whole_batch=False, has_batch_norm=False, most_layers=most_layers)
        build_model = self._scope(chosen).workload.build_model
        self._beat(CHECK_BUILD)
        try:
            model = tried_twice(lambda: model_on_meta(build_model), self._budget)
        except UnfitError as error:  # every rank is about to say it
            return untrained(error.error)
        num_weights = sum(weight.numel() for weight in model.parameters())
        self._compare_s = num_weights / _COMPARED_WEIGHTS_PER_S
        chosen = replace(chosen, has_batch_norm=has_batch_norm(model))
        del model
        is_smaller = num_weights != self._num_weights
        self._num_weights = num_weights
        if not (is_smaller and self._has_room(num_weights * 4)):
            raise _TooLargeError(
                phrase("Two steps of the model on one device do not fit in memory beside the run.")
            )
        failure: Exception | None = None
        is_small = num_weights <= _FP64_WEIGHTS and self._has_room(num_weights * 8)
        wide = "fp64" if is_small else "fp32" if own in _HALF else own
        for precision in dict.fromkeys((wide, own)):
            for whole_batch in (True,) if self._full else (False, True):
                asked = replace(chosen, precision=precision, whole_batch=whole_batch)
                try:
                    return tried_twice(partial(self._within_budget, asked), self._budget)
                except UnfitError as error:  # a model may raise anything for few samples, or in fp64
                    failure = error.error
        assert failure is not None
        if isinstance(failure, torch.OutOfMemoryError):
            raise _TooLargeError(untrained(failure))
        return untrained(failure)

    def _has_room(self, weight_bytes: int) -> bool:
        """Whether there is room for the steps of all ranks here and for those of one device."""
        device = self._devices[0]
        if device.type == "cuda":
            free_bytes, _ = torch.cuda.mem_get_info(device)
            return weight_bytes * _COPIES < _SHARE_OF_MEMORY * free_bytes
        num_copies = _COPIES * (1 + self._num_devices)
        return weight_bytes * num_copies < _SHARE_OF_MEMORY * psutil.virtual_memory().available

    def _on_one_device(self, chosen: _Chosen) -> OneDevice:
        if chosen not in self._one_device:
            scope = self._scope(chosen)
            self._one_device[chosen] = OneDevice(
                scope, self._devices[0], self._draws, self._budget, self._beat
            )
        return self._one_device[chosen]

    def _within_budget(self, chosen: _Chosen) -> _Chosen:
        """The choice, or whole batches where there is time for them.

        Raises: _TooLargeError where there is not even time for it; whatever the model raises.
        """
        one_device = self._on_one_device(chosen)
        one_device.try_slice()
        scope = one_device.scope
        times = scope.batch_samples / scope.num_samples
        share = self._share_of_device

        def has_time_for_another(computed: Computed) -> bool:
            step_s = computed.seconds[0]
            self._allow_for_steps(chosen, max(0.0, step_s - _TO_BEGIN_S) * times)
            return self._budget.has(step_s * (1 + NUM_STEPS * share) + self._compare_s)

        steps_s = one_device.whole(has_time_for_another).seconds
        self._allow_for_steps(chosen, steps_s[-1] * times)
        if not self._budget.has(share * sum(steps_s) + self._compare_s):
            raise _TooLargeError(
                phrase(
                    "A step on one device takes {seconds} s: a check would take more than 5 % of this run.",
                    seconds=f"{steps_s[-1]:.1f}",
                )
            )
        whole_s = NUM_STEPS * steps_s[-1] * times
        if scope.is_whole or whole_s > _WHOLE_BATCH_S or not self._budget.has((1 + share) * whole_s):
            return chosen
        chosen = replace(chosen, whole_batch=True)
        self._on_one_device(chosen).whole()
        return chosen

    @property
    def _share_of_device(self) -> float:
        """What a step under the strategy takes, in times of one device's."""
        return _TIMES_SHARE / self._num_at_once

    @property
    def _num_at_once(self) -> int:
        """How many devices compute side by side."""
        if self._devices[0].type == "cpu":
            return min(self._num_devices, len(os.sched_getaffinity(0)))
        return self._num_devices

    def _allow_for_steps(self, chosen: _Chosen, step_s: float) -> None:
        """Count in how long the run takes at least, by one device's step over a whole batch."""
        is_doubled = chosen.precision != self._workload.config.train.precision
        self._budget.allow_for(self._workload.steps * step_s / self._num_at_once / (2 if is_doubled else 1))

    def _check(self, chosen: _Chosen) -> Result:
        scope = self._scope(chosen)
        # Other blocks or classes than the run's prove nothing about those.
        is_changed = chosen.most_layers is not None or "batch-norm" in scope.left_out
        try:
            trial = StrategyTrial(
                scope.workload,
                rank=self._rank,
                world_size=self._world_size,
                devices=self._devices,
                known=KnownModel() if is_changed else self._known,
                beat=self._beat,
            )
        except RankdeckError as error:
            # Options may name layers that are left out, on every rank; a factory may raise on this one alone.
            if chosen.most_layers is None or error is scope.workload.raised:
                raise
            why = phrase("It cannot be compared with fewer layers: {why}", why=error.message)
            return Result(unchecked=why)
        try:
            return self._result(chosen, trial)
        finally:
            trial.close()
            del trial
            gc.collect()  # the run builds its own: what this one held has to be gone by then

    def _result(self, chosen: _Chosen, trial: StrategyTrial) -> Result:
        too_long: Phrase | None = self._agree(lambda: self._too_long(chosen))
        if too_long is not None:
            return Result(unchecked=too_long)
        shared = self._agree(lambda: self._on_one_device(chosen).samples.shared())
        trial.run(self._draws, shared, lambda: bool(self._agree(lambda: self._has_time_for_second(chosen))))
        computed, scope = trial.computed, self._scope(chosen)
        trial.gather(decisive_step(chosen.precision, len(computed.losses)))
        result: Result | None = self._agree(lambda: self._compared(chosen, computed))
        if result is None:
            trial.gather_rest()
            result = self._agree(lambda: self._explained(chosen, computed))
        assert result is not None
        return replace(
            result,
            precision=chosen.precision,
            num_samples=scope.num_samples,
            num_steps=len(computed.losses),
            most_layers=chosen.most_layers,
            left_out=scope.left_out,
        )

    def _too_long(self, chosen: _Chosen) -> Phrase | None:
        """Why there is no time for a step, once the strategy is built."""
        self._built_s = self._budget.spent_s
        if self._budget.has(self._step_s(chosen) + self._compare_s):
            return None
        return phrase(
            "It took {seconds} s to build the strategy: a check would take more than 5 % of this run.",
            seconds=f"{self._built_s:.1f}",
        )

    def _step_s(self, chosen: _Chosen) -> float:
        return self._share_of_device * self._plain(chosen).seconds[-1]

    def _plain(self, chosen: _Chosen) -> Computed:
        """One device's steps, with batch norms as they are compared first."""
        return self._on_one_device(replace(chosen, own_norms=False)).whole()

    def _has_time_for_second(self, chosen: _Chosen) -> bool:
        """Whether there is time for a second step under the strategy, and one device has taken it too."""
        has_both = len(self._plain(chosen).losses) == NUM_STEPS
        took_s = self._budget.spent_s - self._built_s
        return has_both and self._budget.has(min(took_s, self._step_s(chosen)) + self._compare_s)

    def _compared(self, chosen: _Chosen, computed: Computed) -> Result | None:
        """None where something differs."""
        one_device = self._on_one_device(chosen)
        one_device.num_steps = len(computed.losses)
        if not is_finite(self._plain(chosen)):
            return Result(unchecked=phrase("On one device the loss or a weight is not finite in two steps."))
        expected = self._expected(one_device)
        if expected is None:
            return Result(unchecked=phrase("Batch norms see slices that one device cannot take."))
        comparison = one_device.compare(expected, computed)
        if comparison.is_equal:
            return Result(largest=comparison.largest, has_drawn=self._draws.has_drawn)
        if self._draws.missed:
            return Result(
                unchecked=phrase("The model draws random numbers that cannot be fixed for a comparison.")
            )
        return None

    def _explained(self, chosen: _Chosen, computed: Computed) -> Result:
        one_device = self._on_one_device(chosen)
        expected = self._expected(one_device)
        assert expected is not None
        finding = explain(expected, computed, one_device)
        largest = one_device.compare(expected, computed).largest
        return Result(finding, largest=largest, has_drawn=self._draws.has_drawn)

    def _expected(self, one_device: OneDevice) -> Computed | None:
        """What the strategy should compute; None where that cannot be had."""
        with contextlib.suppress(OutOfTimeError):
            return one_device.expected()
        return None
