"""Checks whether ranks train on the same batches, in a script that draws its batches without a DataLoader.

A few numbers are read from the inputs of DistributedDataParallel in its first training steps, but only from
tensors in host memory. Read epochs.py first, which does the same for the batches of a loader.
"""

from __future__ import annotations

import functools

from .epochs import NUM_FIRST_BATCHES, digest_of, numbers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "inputs"


class FirstInputs:
    """Collects numbers from the inputs of the first training steps, and reports their digest."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self.forget()

    def forget(self) -> None:
        self.is_done = False
        self._step = -1
        """Number of finished steps at the last forward pass that was examined."""
        self._inputs: list[list[Any]] = []

    def on_forward(self, model: Any, inputs: Any) -> None:
        """Handle a forward pass: examine the first one of each step."""
        session = self._session
        if not model.training or not self._torch.is_grad_enabled() or session.step == self._step:
            return
        self._step = session.step
        self._inputs.append(numbers_of(self._torch.Tensor, inputs))
        if len(self._inputs) < NUM_FIRST_BATCHES:
            return
        self.is_done = True
        digests = {repr(numbers) for numbers in self._inputs}
        # A fixed batch, as in a benchmark, is meant to be the same everywhere.
        is_drawn = all(self._inputs) and len(digests) == NUM_FIRST_BATCHES
        if is_drawn and session.samples is None and "first_batches" not in session.facts:
            session.record_facts(first_batches=digest_of(self._inputs), sampler={"drawn": True})


def install(module: Any, session: RankSession) -> None:
    """Observe the inputs of DistributedDataParallel, which `module` defines, if the level is `check`."""
    # Examples and benchmarks draw random inputs after the same seed on all ranks.
    if not session.is_checked:
        return
    import torch

    ddp = module.DistributedDataParallel
    pre_forward = getattr(ddp, "_pre_forward", None)
    if pre_forward is None:
        return
    first_inputs = FirstInputs(torch, session)
    session.on_fork.add(PART, first_inputs.forget)
    on_forward = session.wrap_part(PART, first_inputs.on_forward)

    # A hook would be traced by torch.compile, which leaves DDP's own forward pass alone.
    @functools.wraps(pre_forward)
    def observed(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not first_inputs.is_done:
            on_forward(self, [*inputs, *kwargs.values()])
        return pre_forward(self, *inputs, **kwargs)

    ddp._pre_forward = observed
