"""Checks whether modules are in training mode while they train, and in evaluation mode during evaluations.

Only a model with dropout or batch norms behaves differently in the two modes. The mode of the module that
really trains is read before each step (trained_modules.py); layer_modes.py checks the submodules. Read
steps.py and loaders.py first.
"""

from __future__ import annotations

import weakref

from . import eval_calls
from .layer_modes import PART, LayerModes
from .models import uses_compiler
from .trained_modules import TrainedModules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_NUM_IN_A_ROW = 10
"""Number of steps in a row that must train in evaluation mode before this is reported."""
_MIN_BATCHES = 2
_MAX_PASSES = 8
"""Maximum number of passes over loaders to examine while gradients are disabled."""


class ModeChecks:
    """Reads the mode of the trained module before each step and at each evaluation batch."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self._trained = TrainedModules(torch, session)
        self.calls = eval_calls.EvalCalls(torch, session, self._trained.is_mode_dependent)
        self._layers = LayerModes(torch, session, self._trained, self.calls)
        self._hook: Any = None
        """Handle of a global forward hook that shows whether a pass without gradients runs this model."""
        self._forget_leader()

    def forget(self) -> None:
        self.calls.forget()
        self._forget_leader()

    def _forget_leader(self) -> None:
        self._end_hook()
        self._trained.forget()
        self._layers.forget()
        self._num_eval = 0
        self._first_eval: int | None = None
        self._has_trained = False
        self._last_trained = 0
        self._passes: Any = weakref.WeakKeyDictionary()
        """By iterator: number of batches fetched without gradients while the model was in training mode; -1
        if it was in evaluation mode at any of them."""
        self._num_passes = 0
        self._has_run = False

    def on_leader_chosen(self, optimizer: Any) -> None:
        """Start over with the model of the new leading optimizer."""
        self._forget_leader()
        self._trained.refresh(optimizer)

    def before_step(self, optimizer: Any, leads: bool) -> None:
        """Read the mode before a step of the leading optimizer."""
        if self._hook is not None:
            self._end_hook()
        if not leads:
            return
        # Before the mode is read: a submodule may be left in evaluation mode while the root trains.
        if self.calls.new:
            self._layers.on_evaluated(self.calls.take_evaluated())
        path, step = self._trained.path, self._session.step + 1
        root = path[-1]() if path else None
        if root is None or self._num_eval >= _NUM_IN_A_ROW:
            return
        if root.training:
            self._num_eval, self._has_trained, self._last_trained = 0, True, step
            return
        if self._num_eval == 0:
            # The first steps of an optimizer are not examined, because it does not lead yet.
            self._first_eval = step if self._has_trained else self._session.first_step + 1
        self._num_eval += 1
        if self._num_eval == _NUM_IN_A_ROW:
            layers = self._trained.count_layers(root, False)
            if layers and not any(module.training for module in root.modules()):
                call = self.calls.last_on(root)
                self._session.report_anomaly(
                    "eval-while-training",
                    names=layers,
                    step=self._first_eval,
                    line="" if call is None else call.line,
                    was_training=self._last_trained if self._has_trained else 0,
                )

    def on_sampled_step(self, optimizer: Any) -> None:
        """Examine the modules after a sampled step; the longer this takes, the later the next step is
        sampled."""
        self._trained.refresh(optimizer)
        self._layers.scan()

    def on_batch_without_gradients(self, iterator: Any) -> None:
        """Handle a batch that a loader returned while gradients were disabled."""
        self.calls.num_batches += 1
        root = self._trained.root
        is_enough = self._num_passes >= _MAX_PASSES and not self._session.is_checked
        if root is None or not self._session.step or is_enough:
            return
        if self._hook is None and not uses_compiler():
            self._has_run = False
            references = self._trained.path

            def on_forward(module: Any, _: Any) -> None:
                # A batch may be prepared without gradients and then be trained on.
                is_evaluating = not self._torch.is_grad_enabled()
                self._has_run |= is_evaluating and any(ref() is module for ref in references)

            self._hook = self._torch.nn.modules.module.register_module_forward_pre_hook(on_forward)
        seen = self._passes.get(iterator, 0)
        self._passes[iterator] = -1 if seen < 0 or not root.training else seen + 1

    def on_pass_ended(self, iterator: Any) -> None:
        """Handle the end of a pass over a loader."""
        num = self._passes.pop(iterator, 0)
        root, has_run = self._trained.root, self._has_run
        self._end_hook()
        if num < _MIN_BATCHES or root is None or not root.training or not has_run:
            return
        layers = self._trained.count_layers(root, True)
        # What computes the statistics anew must run in training mode. It sets the momentum to None, as
        # torch.optim.swa_utils.update_bn does, or to 1, as for a mean of the statistics of all batches.
        is_updating = any(getattr(module, "momentum", 0) in (None, 1) for module in root.modules())
        if layers and not is_updating:
            self._session.report_anomaly("train-while-evaluating", names=layers, batches=num)

    def _end_hook(self) -> None:
        if self._hook is not None:
            self._num_passes += 1
            self._hook.remove()
            self._hook = None


def install(torch: Any, session: RankSession) -> None:
    """Read the mode before each step; loaders.py reports the batches of evaluations."""
    session.modes = modes = ModeChecks(torch, session)
    eval_calls.install(torch, session.wrap_part(PART, modes.calls.on_eval))
    session.before_step.add(PART, modes.before_step)
    session.on_sampled_step.add(PART, modes.on_sampled_step)
    session.on_leader_chosen.add(PART, modes.on_leader_chosen)
    session.on_fork.add(PART, modes.forget)
