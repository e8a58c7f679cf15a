"""Held-out loss under every strategy: each held-out sample counts once.

All ranks run equally many batches, the last ones smaller or of a sample that does not count; one all-reduce
at the end makes the sums those of the whole set.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from rankdeck import events
from rankdeck.data.base import SampleSet
from rankdeck.data.loader import Loader, build_loader
from rankdeck.data.sampling import HeldoutBatches
from rankdeck.strategies.base import Strategy


class Evaluator:
    """Goes over the held-out samples with a loader of its own, kept between evaluations."""

    def __init__(
        self,
        strategy: Strategy,
        heldout: SampleSet,
        *,
        batch: int,
        workers: int,
        pin_memory: bool,
        has_classes: bool,
    ) -> None:
        index, count = strategy.data_shard()
        sampler = HeldoutBatches(len(heldout), batch, shard_index=index, shard_count=count)
        self._strategy = strategy
        self._valid = sampler.valid_counts()
        self._num_samples = len(heldout)
        self._has_classes = has_classes
        self._loader: Loader = build_loader(heldout, sampler, workers=workers, pin_memory=pin_memory)

    def run(self, step: int, *, final: bool, beat: Callable[[], None] = lambda: None) -> events.Evaluation:
        """The evaluation after `step`; the same on every rank. `beat` is called before each batch."""
        started = time.monotonic()
        total = count = correct = 0.0
        knows_correct = self._has_classes and self._strategy.loss.correct is not None
        beat()
        for batch, num_valid in zip(self._loader, self._valid, strict=True):
            beat()
            sums = self._strategy.evaluate(batch, num_valid)
            total += sums.total
            count += sums.count
            correct += sums.correct or 0.0
        total, count, correct = self._over_ranks(total, count, correct)
        return events.Evaluation(
            step=step,
            loss=total / count if count else None,
            samples=self._num_samples,
            seconds=time.monotonic() - started,
            accuracy=correct / count if knows_correct and count else None,
            final=final,
        )

    def _over_ranks(self, *sums: float) -> list[float]:
        if self._strategy.setup.world_size == 1:
            return list(sums)
        # Ranks that work on one batch together tell the same sums: of quotients nothing changes.
        together = torch.tensor(sums, dtype=torch.float64, device=self._strategy.device)
        dist.all_reduce(together)
        return [float(value) for value in together]

    def close(self) -> None:
        self._loader.close()
