"""Compute the steps on one device in all variants that the check needs, each variant only once.

Read reference.py first, causes.py and check.py next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from rankdeck.base.heartbeat import CHECK_STEP, VERIFYING
from rankdeck.parallel.pytree import num_samples, split_batch
from rankdeck.training.batches import training_sampler
from rankdeck.training.verify.budget import CheckBudget
from rankdeck.training.verify.check_errors import CheckStopError, UncheckableError, run_with_retry
from rankdeck.training.verify.compare import Noise, StepComparison, StepResults, compare, make_perturbation
from rankdeck.training.verify.compared_samples import ComparedSamples, Shard
from rankdeck.training.verify.draws import FixedDraws
from rankdeck.training.verify.reference import MicrostepSlices, run_reference_steps, try_slice
from rankdeck.training.verify.scope import NUM_STEPS, CheckScope


class OutOfTimeError(CheckStopError):
    """Raised when no time is left to compute the steps once more."""


class OneDevice:
    """Computations of the steps of `scope` on `device`, with the fixed random numbers of `draws`.

    `beat` is called in each computation. Computations that only help to find a cause start only if `budget`
    allows them.
    """

    def __init__(
        self,
        scope: CheckScope,
        device: torch.device,
        draws: FixedDraws,
        budget: CheckBudget,
        beat: Callable[[str], object],
    ) -> None:
        self.scope, self._device, self._draws = scope, device, draws
        self._budget, self._beat = budget, beat
        self.samples = ComparedSamples(scope.workload)
        self.num_steps = NUM_STEPS
        """Number of steps to take in later computations."""
        self._computed: dict[Any, StepResults | None] = {}
        self._parameters: frozenset[str] = frozenset()

    def full_batches(self, goes_on: Callable[[StepResults], bool] = lambda computed: True) -> StepResults:
        """Return the results of the steps over full batches, which a plain run on one device would use."""
        computed = self._once(
            "whole", lambda: self._run_steps(self._full_microsteps(), should_continue=goes_on)
        )
        assert computed is not None
        return computed

    def expected(self) -> StepResults | None:
        """Return the results that the strategy should compute: those of the steps on one device over full
        batches, or over slices if batch norms normalize over slices."""
        return (
            self.in_slices(loss_by_slice=True, whole_state=True)
            if self.norms_see_slices
            else self.full_batches()
        )

    @property
    def norms_see_slices(self) -> bool:
        """Whether batch norms inherently normalize over slices of a batch."""
        return self.scope.norms == "slices"

    def in_slices(self, loss_by_slice: bool, whole_state: bool) -> StepResults | None:
        """Return the results of the steps over the slices that the strategy's forward passes process.

        State passes from slice to slice; if `whole_state` is True, all slices of a microstep instead start
        with the state that unsliced forward passes of the earlier microsteps leave. If `loss_by_slice` is
        True, each slice has its own loss; otherwise one loss is computed from the slices' concatenated
        outputs. Return None if nothing is split, or if the computation over slices fails.

        Raises: OutOfTimeError.
        """
        if not (self.scope.is_batch_split and self._shards_cover_batch()):
            return None

        def steps() -> StepResults:
            return self._run_steps(self._slices(), loss_by_slice=loss_by_slice, whole_state=whole_state)

        def compute() -> StepResults | None:
            try:
                return run_with_retry(steps, self._budget)
            except (
                UncheckableError
            ):  # a slice may raise anything: a loss inside the model, graphs, other lengths
                return None

        return self._once_within_budget(("sliced", loss_by_slice, whole_state), compute)

    def without_state(self) -> StepResults:
        """Return the results of the steps over full batches, with the initial state restored before each
        step. Raises: OutOfTimeError."""
        computed = self._once_within_budget(
            "forgetful", lambda: self._run_steps(self._full_microsteps(), resets_state=True)
        )
        assert computed is not None
        return computed

    def try_slice(self) -> None:
        """Compute the loss of one slice.

        Raises: any exception that the model or the loss raises for so few samples.
        """
        if self.scope.is_batch_split:
            slices = self._slices()[0][0][:1]
            try_slice(self.scope.workload, slices, self._device, self._draws, self._beat)

    def compare(self, expected: StepResults, computed: StepResults) -> StepComparison:
        """Return differences larger than this model's rounding errors, which are measured only if narrower
        bounds are exceeded."""
        return compare(expected, computed, self._parameters, self.scope.precision, self._measure_noise)

    def _measure_noise(self) -> Noise:
        perturb = make_perturbation(self.scope.precision)
        noisy = self._once("noisy", lambda: self._run_steps(self._full_microsteps(), prepare=perturb))
        assert noisy is not None
        return Noise(self.full_batches(), noisy, self.scope.precision)

    def _once_within_budget(self, key: Any, compute: Callable[[], StepResults | None]) -> StepResults | None:
        """Return the result of `compute`, which runs only once per `key`, and only if there is time. Raises:
        OutOfTimeError."""
        plain = self._computed.get("whole")
        took_s = 0.0 if plain is None else sum(plain.seconds[: self.num_steps])
        if key not in self._computed and not self._budget.allows(took_s):
            raise OutOfTimeError
        return self._once(key, compute)

    def _once(self, key: Any, compute: Callable[[], StepResults | None]) -> StepResults | None:
        if key not in self._computed:
            self._computed[key] = compute()
            self._beat(VERIFYING)
        return self._computed[key]

    def _run_steps(
        self,
        steps: Sequence[Sequence[MicrostepSlices]],
        *,
        loss_by_slice: bool = True,
        whole_state: bool = False,
        resets_state: bool = False,
        prepare: Callable[[nn.Module], None] = lambda model: None,
        should_continue: Callable[[StepResults], bool] = lambda computed: True,
    ) -> StepResults:
        def prepared(model: nn.Module) -> None:
            self._parameters = frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))
            prepare(model)

        return run_reference_steps(
            self.scope.workload,
            steps[: self.num_steps],
            self._device,
            loss_by_slice=loss_by_slice,
            whole_state=self._read_steps((0, 1)) if whole_state else None,
            num_norm_slices=self.scope.num_norm_slices,
            resets_state=resets_state,
            prepare=prepared,
            should_continue=should_continue,
            draws=self._draws,
            beat=self._beat,
        )

    def _full_microsteps(self) -> list[list[MicrostepSlices]]:
        return [[[batch] for batch in microsteps] for microsteps in self._read_steps((0, 1))]

    def _slices(self) -> list[list[MicrostepSlices]]:
        """Return, for each microstep of each step, the slices that each rank's forward passes process."""
        shards = [self._read_steps((index, self.scope.num_shards)) for index in range(self.scope.num_shards)]
        return [
            [
                [piece for shard in shards for piece in self._split_into_forwards(shard[step][microstep])]
                for microstep in range(len(microsteps))
            ]
            for step, microsteps in enumerate(shards[0])
        ]

    def _shards_cover_batch(self) -> bool:
        """Check whether each full batch equals the shards' batches, concatenated, sample for sample."""
        workload, shards = self.scope.workload, self.scope.num_shards
        full_batches = training_sampler(workload, (0, 1)).index_tensors()
        batches = zip(
            *(training_sampler(workload, (i, shards)).index_tensors() for i in range(shards)), strict=True
        )
        return all(
            torch.equal(torch.cat(shard_batches), full_batch)
            for shard_batches, full_batch in zip(batches, full_batches, strict=True)
        )

    def _split_into_forwards(self, batch: tuple[Any, Any]) -> MicrostepSlices:
        num = num_samples(batch)
        size = -(-num // self.scope.num_forwards)
        inputs, targets = (split_batch(values, size, num) for values in batch)
        return list(zip(inputs, targets, strict=True))

    def _read_steps(self, shard: Shard) -> list[list[tuple[Any, Any]]]:
        """Return a shard's microsteps, by step. Raises: UnrepeatableDataError."""
        self._beat(CHECK_STEP)
        num_microsteps = self.scope.workload.config.train.accumulate
        batches = self.samples.read(shard)
        return [batches[start : start + num_microsteps] for start in range(0, len(batches), num_microsteps)]
