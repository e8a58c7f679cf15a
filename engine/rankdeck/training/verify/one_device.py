"""One device's steps in all the ways in which the check needs them, each computed once.

Read reference.py before, causes.py and check.py next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from rankdeck.base.heartbeat import CHECK_STEP, VERIFYING
from rankdeck.parallel.nested import cut_batch, num_samples
from rankdeck.training.batches import training_samples
from rankdeck.training.verify.budget import Budget
from rankdeck.training.verify.compare import Computed, ComputedComparison, Noise, compare, rounded_once
from rankdeck.training.verify.compared_samples import ComparedSamples, Shard
from rankdeck.training.verify.conditions import CheckStopError, UnfitError, tried_twice
from rankdeck.training.verify.draws import FixedDraws
from rankdeck.training.verify.reference import Part, steps_on_one_device, try_slice
from rankdeck.training.verify.scope import NUM_STEPS, CheckedScope


class OutOfTimeError(CheckStopError):
    """There is no time left to compute the steps once more."""


class OneDevice:
    """The steps of `scope` on `device`, with random numbers of `draws`; `beat` hears of each computation, and
    none to find a cause is begun that `budget` does not allow."""

    def __init__(
        self,
        scope: CheckedScope,
        device: torch.device,
        draws: FixedDraws,
        budget: Budget,
        beat: Callable[[str], object],
    ) -> None:
        self.scope, self._device, self._draws = scope, device, draws
        self._budget, self._beat = budget, beat
        self.samples = ComparedSamples(scope.workload)
        self.num_steps = NUM_STEPS
        """How many steps are computed from now on."""
        self._computed: dict[Any, Computed | None] = {}
        self._parameters: frozenset[str] = frozenset()

    def whole(self, goes_on: Callable[[Computed], bool] = lambda computed: True) -> Computed:
        """Over whole parts, as one device takes them."""
        computed = self._once("whole", lambda: self._steps(self._whole_parts(), goes_on=goes_on))
        assert computed is not None
        return computed

    def expected(self) -> Computed | None:
        """What the strategy should compute: what one device does, but where batch norms see slices."""
        return self.sliced(loss_by_slice=True, whole_state=True) if self.sees_slices else self.whole()

    @property
    def sees_slices(self) -> bool:
        """Whether batch norms normalise slices of a batch, by nature."""
        return self.scope.norms == "slices"

    def sliced(self, loss_by_slice: bool, whole_state: bool) -> Computed | None:
        """Over the slices that the strategy's forwards see, whose state goes from slice to slice or is that
        of whole parts; None where nothing is cut, or where outputs of slices cannot be put together for one
        loss.

        Raises: OutOfTimeError.
        """
        if not (self.scope.is_cut and self._is_covered()):
            return None

        def steps() -> Computed:
            return self._steps(self._slices(), loss_by_slice=loss_by_slice, whole_state=whole_state)

        def compute() -> Computed | None:
            try:
                return tried_twice(steps, self._budget)
            except UnfitError:  # a loss inside the model, graphs, other lengths: whatever a slice may raise
                return None

        return self._once_more(("sliced", loss_by_slice, whole_state), compute)

    def forgetful(self) -> Computed:
        """Over whole parts, each step from the first one's state. Raises: OutOfTimeError."""
        computed = self._once_more("forgetful", lambda: self._steps(self._whole_parts(), forgets=True))
        assert computed is not None
        return computed

    def try_slice(self) -> None:
        """Compute the loss of one slice. Raises: whatever the model and the loss raise for so few samples."""
        if self.scope.is_cut:
            part = self._slices()[0][0][:1]
            try_slice(self.scope.workload, part, self._device, self._draws, self._beat)

    def compare(self, expected: Computed, computed: Computed) -> ComputedComparison:
        """What differs by more than the rounding of this model; that is measured only where it matters."""
        return compare(expected, computed, self._parameters, self.scope.precision, self._noise)

    def _noise(self) -> Noise:
        perturb = rounded_once(self.scope.precision)
        noisy = self._once("noisy", lambda: self._steps(self._whole_parts(), prepare=perturb))
        assert noisy is not None
        return Noise(self.whole(), noisy, self.scope.precision)

    def _once_more(self, key: Any, compute: Callable[[], Computed | None]) -> Computed | None:
        """As `_once`, where there is time for it. Raises: OutOfTimeError."""
        plain = self._computed.get("whole")
        took_s = 0.0 if plain is None else sum(plain.seconds[: self.num_steps])
        if key not in self._computed and not self._budget.has(took_s):
            raise OutOfTimeError
        return self._once(key, compute)

    def _once(self, key: Any, compute: Callable[[], Computed | None]) -> Computed | None:
        if key not in self._computed:
            self._computed[key] = compute()
            self._beat(VERIFYING)
        return self._computed[key]

    def _steps(
        self,
        steps: Sequence[Sequence[Part]],
        *,
        loss_by_slice: bool = True,
        whole_state: bool = False,
        forgets: bool = False,
        prepare: Callable[[nn.Module], None] = lambda model: None,
        goes_on: Callable[[Computed], bool] = lambda computed: True,
    ) -> Computed:
        def prepared(model: nn.Module) -> None:
            self._parameters = frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))
            prepare(model)

        return steps_on_one_device(
            self.scope.workload,
            steps[: self.num_steps],
            self._device,
            loss_by_slice=loss_by_slice,
            whole_state=self._read((0, 1)) if whole_state else None,
            num_normed=self.scope.num_normed,
            forgets=forgets,
            prepare=prepared,
            goes_on=goes_on,
            draws=self._draws,
            beat=self._beat,
        )

    def _whole_parts(self) -> list[list[Part]]:
        return [[[batch] for batch in parts] for parts in self._read((0, 1))]

    def _slices(self) -> list[list[Part]]:
        """Of each part of each step: what each rank reads of it, in the pieces of its forwards."""
        shards = [self._read((index, self.scope.shards)) for index in range(self.scope.shards)]
        return [
            [
                [piece for shard in shards for piece in self._pieces(shard[step][part])]
                for part in range(len(parts))
            ]
            for step, parts in enumerate(shards[0])
        ]

    def _is_covered(self) -> bool:
        """Whether the shards together have the samples of the whole, each once and in its order."""
        workload, shards = self.scope.workload, self.scope.shards
        whole = training_samples(workload, (0, 1)).tensors()
        parts = zip(*(training_samples(workload, (i, shards)).tensors() for i in range(shards)), strict=True)
        return all(torch.equal(torch.cat(part), own) for part, own in zip(parts, whole, strict=True))

    def _pieces(self, batch: tuple[Any, Any]) -> Part:
        num = num_samples(batch)
        size = -(-num // self.scope.pieces)
        inputs, targets = (cut_batch(values, size, num) for values in batch)
        return list(zip(inputs, targets, strict=True))

    def _read(self, shard: Shard) -> list[list[tuple[Any, Any]]]:
        """By step, the parts of a shard. Raises: UnrepeatableDataError."""
        self._beat(CHECK_STEP)
        parts = self.scope.workload.config.train.accumulate
        batches = self.samples.read(shard)
        return [batches[start : start + parts] for start in range(0, len(batches), parts)]
