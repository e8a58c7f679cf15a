"""The check of equality before the first step, as every rank runs it.

    rank 0    two steps on one device: how long do they take, is there time for whole batches?
    all       two steps under the strategy
    rank 0    compares, and looks for the cause of what differs
    all       get the result

It costs at most 3 s or 5 % of the run, whichever is more, by what rank 0's own steps took; where that is too
little, nothing is compared and the result says so. Read verdict.py next: what becomes of the result.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch
import torch.distributed as dist

from rankdeck.base.phrases import Phrase, phrase
from rankdeck.data.randomness import kept
from rankdeck.diagnose.exceptions import words_of
from rankdeck.parallel.fsdp.blank import model_on_meta
from rankdeck.training.verify.causes import Discrepancy, Experiments, explain
from rankdeck.training.verify.compare import is_finite
from rankdeck.training.verify.computed import Computed
from rankdeck.training.verify.draws import FixedDraws
from rankdeck.training.verify.one_device import OneDevice
from rankdeck.training.verify.scope import NUM_STEPS, CheckedScope, scope_of
from rankdeck.training.verify.trial import StrategyTrial
from rankdeck.training.workload import Workload

LEAST_BUDGET_S, SHARE_OF_RUN = 3.0, 0.05
_WHOLE_BATCH_S = 0.3
"""Two steps over whole batches that take no longer are taken."""
_TIMES_REFERENCE = 4.0
"""What the check takes, in times of one device's two steps."""
_SHARE_OF_MEMORY = 0.5
_COPIES = 6
"""Of the weights: gradients, optimizer state, and what is kept to compare."""
_FP64_WEIGHTS = 50_000_000
_HALF = ("bf16", "fp16")
"""Compared in fp64 first: rounding hides little there."""


@dataclass(frozen=True)
class Result:
    """What the check found. `unchecked` says why nothing was compared; else `findings` are what differs from
    one device, and `largest` is the largest difference of any weight after two steps.

    `has_drawn`: the model or the optimizer draws random numbers, which were fixed for the comparison.
    """

    findings: tuple[Discrepancy, ...] = ()
    unchecked: Phrase | None = None
    largest: float | None = None
    precision: str | None = None
    num_samples: int = 0
    left_out: tuple[str, ...] = ()
    has_drawn: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class _Chosen:
    precision: str
    whole_batch: bool


class EqualityCheck:
    """The check of one rank. `num_devices` are those of the run; a `full` one compares whole batches, however
    long that takes."""

    def __init__(
        self,
        workload: Workload,
        *,
        rank: int,
        world_size: int,
        devices: list[torch.device],
        num_devices: int,
        full: bool = False,
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        self._workload = workload
        self._rank, self._world_size = rank, world_size
        self._devices, self._num_devices = devices, num_devices
        self._full = full
        self._beat = beat
        self._draws = FixedDraws()
        self._one_device: dict[_Chosen, OneDevice] = {}
        self._started_s = time.perf_counter()

    def run(self) -> Result:
        """Check, with all ranks together. Raises: RankdeckError where the strategy refuses."""
        own = self._workload.config.train.precision
        with kept():
            chosen = self._agree(self._choose)
            if isinstance(chosen, Phrase):
                return Result(unchecked=chosen, seconds=self._seconds())
            result = self._check(chosen)
            if own in _HALF and chosen.precision != own and not result.findings and result.unchecked is None:
                in_own = self._check(_Chosen(own, chosen.whole_batch))
                result = in_own if in_own.findings else result
            return replace(result, seconds=self._seconds())

    def _check(self, chosen: _Chosen) -> Result:
        computed = self._try(self._scope(chosen))
        result: Result = self._agree(lambda: self._judge(chosen, computed))
        return result

    @property
    def cut(self) -> tuple[int, int]:
        """(samples of a part of the run's batch, samples that one forward sees of them)."""
        scope = scope_of(self._workload, self._num_devices, precision="fp64", whole_batch=True)
        part = scope.batch_samples // self._workload.config.train.accumulate
        return part, part // (scope.shards * scope.pieces)

    def _seconds(self) -> float:
        return time.perf_counter() - self._started_s

    def _agree(self, decide: Callable[[], Any]) -> Any:
        """What rank 0 decides, on every rank."""
        decided = [decide() if self._rank == 0 else None]
        if self._world_size > 1:
            dist.broadcast_object_list(decided, src=0, device=self._devices[0])
        return decided[0]

    def _scope(self, chosen: _Chosen) -> CheckedScope:
        return scope_of(
            self._workload, self._num_devices, precision=chosen.precision, whole_batch=chosen.whole_batch
        )

    def _choose(self) -> _Chosen | Phrase:
        """What is compared, or why nothing is."""
        own = self._workload.config.train.precision
        try:
            model = model_on_meta(self._workload.build_model)
        except Exception as error:  # every rank is about to say it
            return _untrained(error)
        num_weights = sum(weight.numel() for weight in model.parameters())
        del model
        if not self._has_room(num_weights * 4):
            return phrase("Two steps of the model on one device do not fit in memory beside the run.")
        failure: Exception | None = None
        is_small = num_weights <= _FP64_WEIGHTS and self._has_room(num_weights * 8)
        precisions = ("fp64", own) if is_small else (own,)
        for precision in dict.fromkeys(precisions):
            for whole_batch in (True,) if self._full else (False, True):
                chosen = _Chosen(precision, whole_batch)
                try:
                    return self._within_budget(chosen, self._timed(chosen))
                except Exception as error:  # a person's model may raise anything for few samples, or in fp64
                    failure = error
        assert failure is not None
        return _untrained(failure)

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
            self._one_device[chosen] = OneDevice(scope, self._devices[0], self._draws, self._beat)
        return self._one_device[chosen]

    def _timed(self, chosen: _Chosen) -> float:
        """Seconds of one device's two steps."""
        one_device = self._on_one_device(chosen)
        one_device.whole()
        one_device.try_slice()
        return NUM_STEPS * one_device.step_s

    def _within_budget(self, chosen: _Chosen, took_s: float) -> _Chosen | Phrase:
        """What was tried, or whole batches where there is time for them; why not, where there is not even
        time for what was tried."""
        scope, num_steps = self._scope(chosen), self._workload.steps
        whole_s = took_s * scope.batch_samples / scope.num_samples
        budget_s = max(LEAST_BUDGET_S, SHARE_OF_RUN * num_steps * whole_s / NUM_STEPS)
        if not self._full and _TIMES_REFERENCE * took_s > budget_s:
            return phrase(
                "Two steps on one device take {seconds} s: a check would take more than 5 % of this run.",
                seconds=f"{took_s:.1f}",
            )
        if scope.is_whole or whole_s > _WHOLE_BATCH_S:
            return chosen
        chosen = _Chosen(chosen.precision, whole_batch=True)
        self._timed(chosen)
        return chosen

    def _try(self, scope: CheckedScope) -> Computed | None:
        """What two steps under the strategy compute; on rank 0."""
        trial = StrategyTrial(
            scope.workload, rank=self._rank, world_size=self._world_size, devices=self._devices
        )
        try:
            trial.run(self._draws)
            return trial.computed
        finally:
            trial.close()
            del trial
            gc.collect()  # the run builds its own: what this one held has to be gone by then

    def _judge(self, chosen: _Chosen, computed: Computed | None) -> Result:
        one_device = self._on_one_device(chosen)
        assert computed is not None
        return replace(
            self._compared(one_device, computed),
            precision=chosen.precision,
            num_samples=one_device.scope.num_samples,
            left_out=one_device.scope.left_out,
            has_drawn=self._draws.has_drawn,
        )

    def _compared(self, one_device: OneDevice, computed: Computed) -> Result:
        if not is_finite(one_device.whole()):
            return Result(unchecked=phrase("On one device the loss or a weight is not finite in two steps."))
        has_norms = one_device.has_batch_norm
        experiments = Experiments(
            one_device.compare,
            one_device.sliced,
            one_device.whole,
            one_device.forgetful,
            has_batch_norm=has_norms,
            norms_see_slices=has_norms and one_device.scope.is_cut and not self._joins_norms(),
        )
        findings = explain(computed, experiments)
        if findings and self._draws.missed:
            return Result(
                unchecked=phrase("The model draws random numbers that cannot be fixed for a comparison.")
            )
        return Result(tuple(findings), largest=one_device.compare(one_device.whole(), computed).largest)

    def _joins_norms(self) -> bool:
        """Whether batch norms see all ranks' samples."""
        return bool(self._workload.config.strategy.options.get("sync_batchnorm", False))


def _untrained(error: Exception) -> Phrase:
    why = f"{type(error).__name__}: {words_of(error)}".splitlines()[0].rstrip(": .")
    return phrase("The model did not train on one device by itself: {why}.", why=why)
