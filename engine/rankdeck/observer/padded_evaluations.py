"""Reports evaluations that count a few samples twice: torch's DistributedSampler repeats samples until all
ranks have equally many, and the script then adds up the ranks' results.

An evaluation lasts from a batch that is fetched without gradients, or from the end of a pass without a
backward pass, to the next batch, backward pass or step of the training. A script that gathers samples or
predictions meanwhile can drop the repeated ones, and is not reported. Read sampling.py first.
"""

from __future__ import annotations

import sys

from .frames import script_line
from .sampling import innermost_sampler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "padding"
_MIN_SHARE = 0.005
"""Smallest reported share of repeated samples among the evaluated ones."""
_REDUCTIONS = ("all_reduce", "all_reduce_coalesced", "reduce")


class PaddingCheck:
    """Finds the first evaluation that adds up results of repeated samples."""

    def __init__(self, session: RankSession) -> None:
        self._session = session
        self.is_evaluating = False
        self._numbers: dict[str, int] = {}
        """Numbers to report about the current evaluation."""
        self._line = ""
        """Line of the current evaluation's first reduction."""
        session.on_collective.add(PART, self.on_collective)
        self.forget()

    def forget(self) -> None:
        self._is_done = False
        self._gather_step = -1
        """Number of the last finished step when the script last called a gather, an all-to-all or a
        point-to-point function."""
        self._stop_watching()

    def on_evaluation(self, iterator: Any) -> None:
        """Handle the first batch of an evaluation, or the end of its pass."""
        if self._is_done or self.is_evaluating or self._gather_step == self._session.step:
            return
        sampler = innermost_sampler(iterator)
        if not _is_distributed(sampler):
            return
        num_samples = len(sampler.dataset)
        num_repeated = sampler.total_size - num_samples
        if num_repeated < max(1, _MIN_SHARE * num_samples):
            return
        numbers = {"repeated": num_repeated, "evaluated": num_samples, "ranks": sampler.num_replicas}
        self.is_evaluating, self._numbers, self._line = True, numbers, ""
        session = self._session
        session.on_backward.add(PART, self.on_training)
        session.before_step.add(PART, self.on_training)
        session.on_tick.add(PART, self.on_tick)

    def on_collective(self, name: str) -> None:
        """Handle a collective that the script has called."""
        if name in _REDUCTIONS:
            if self.is_evaluating:
                self._line = self._line or script_line()
        elif "gather" in name or name.startswith(("all_to_all", "send", "recv", "batch_isend")):
            self._gather_step = self._session.step
            self._stop_watching()

    def on_training(self, *_: Any) -> None:
        """End the evaluation when the script trains again, and report it if it added up results."""
        if self.is_evaluating and self._line:
            self._is_done = True
            self._session.report_anomaly(
                "evaluation-padded",
                names=["DistributedSampler"],
                line=self._line,
                **self._numbers,
            )
        self._stop_watching()

    def on_tick(self) -> None:
        """Handle the end of the process, which may end with an evaluation."""
        if self._session.is_ending:
            self.on_training()

    def _stop_watching(self) -> None:
        self.is_evaluating, self._line = False, ""
        for hooks in (self._session.on_backward, self._session.before_step, self._session.on_tick):
            hooks.remove_part(PART)


def _is_distributed(sampler: Any) -> bool:
    """Check whether a sampler divides its samples as torch's DistributedSampler does."""
    module = sys.modules.get("torch.utils.data.distributed")
    kind: Any = type(sampler)
    if module is None or not isinstance(sampler, module.DistributedSampler):
        return False
    return bool(kind.__iter__ is module.DistributedSampler.__iter__)
