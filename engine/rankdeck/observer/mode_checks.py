"""Checks whether modules are in training mode while they train, and in evaluation mode while evaluated.

Only a model with dropout or batch norms behaves differently in the two modes. The mode of the outermost
module is read: a script that keeps single layers in evaluation mode does so on purpose. Read steps.py and
loaders.py first.
"""

from __future__ import annotations

import weakref

from .models import unwrapped, uses_compiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "modes"
_NUM_IN_A_ROW = 10
"""Number of steps in a row in evaluation mode after which this is reported."""
_MIN_BATCHES = 2
_MAX_PASSES = 8
"""Number of passes without gradients that are examined."""


class ModeChecks:
    """Reads the mode of the trained model before each step, and at batches of an evaluation."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self.forget()

    def forget(self) -> None:
        self._root: Any = None
        """Weak reference to the outermost trained module."""
        self._num_eval = 0
        self._first_eval: int | None = None
        self._has_trained = False
        self._last_trained = 0
        self._passes: Any = weakref.WeakKeyDictionary()
        """By iterator: number of batches fetched without gradients while the model was in training mode; -1
        if it was in evaluation mode at any of them."""
        self._num_passes = 0
        self._hook: Any = None
        """Handle of a global forward hook during such a pass: another model may be evaluated."""
        self._has_run = False

    def on_leader_chosen(self, _: Any) -> None:
        """Start over with another optimizer's model."""
        self._end_hook()
        self.forget()

    def _model(self) -> Any:
        return next((m for m in (reference() for reference in self._session.models) if m is not None), None)

    def before_step(self, optimizer: Any, leads: bool) -> None:
        """Read the mode before a step of the leading optimizer."""
        if self._hook is not None:
            self._end_hook()
        if not leads or self._num_eval >= _NUM_IN_A_ROW:
            return
        if self._session.is_step_sampled:
            self._root = next((ref for ref in self._session.models if ref() is not None), None)
        model, step = self._root and self._root(), self._session.step + 1
        if model is None:
            return
        if model.training:
            self._num_eval, self._has_trained, self._last_trained = 0, True, step
            return
        if self._num_eval == 0:
            # The first steps of an optimizer are not examined, because it does not lead yet.
            self._first_eval = step if self._has_trained else self._session.first_step + 1
        self._num_eval += 1
        if self._num_eval == _NUM_IN_A_ROW:
            layers = self._layers(model, False)
            is_any_training = any(module.training for module in model.modules())
            if layers and not is_any_training:
                self._session.report_anomaly(
                    "eval-while-training",
                    names=layers,
                    step=self._first_eval,
                    was_training=self._last_trained if self._has_trained else 0,
                )

    def on_batch_without_gradients(self, iterator: Any) -> None:
        """Handle a batch that a loader returned while gradients were disabled."""
        model = self._model()
        if (
            model is None
            or not self._session.step
            or (self._num_passes >= _MAX_PASSES and not self._session.is_checked)
        ):
            return
        if self._hook is None and not uses_compiler():
            self._has_run = False
            inner = unwrapped(model)

            def on_forward(module: Any, _: Any) -> None:
                self._has_run |= module is model or module is inner

            self._hook = self._torch.nn.modules.module.register_module_forward_pre_hook(on_forward)
        seen = self._passes.get(iterator, 0)
        self._passes[iterator] = -1 if seen < 0 or not model.training else seen + 1

    def on_pass_ended(self, iterator: Any) -> None:
        """Handle the end of a pass over a loader."""
        num = self._passes.pop(iterator, 0)
        model, has_run = self._model(), self._has_run
        self._end_hook()
        if num < _MIN_BATCHES or model is None or not model.training or not has_run:
            return
        layers = self._layers(model, True)
        # torch.optim.swa_utils.update_bn, which must run in training mode, sets the momentum to None.
        is_updating = any(getattr(module, "momentum", 0) is None for module in model.modules())
        if layers and not is_updating:
            self._session.report_anomaly("train-while-evaluating", names=layers, batches=num)

    def _end_hook(self) -> None:
        if self._hook is not None:
            self._num_passes += 1
            self._hook.remove()
            self._hook = None

    def _layers(self, model: Any, training: bool) -> list[str]:
        """Return the kinds of layers in this mode that behave differently in the other mode."""
        dropouts, norms = (
            self._torch.nn.modules.dropout._DropoutNd,
            self._torch.nn.modules.batchnorm._NormBase,
        )
        kinds: dict[str, int] = {}
        for module in model.modules():
            differs = (isinstance(module, dropouts) and module.p > 0) or (
                isinstance(module, norms) and module.track_running_stats
            )
            if differs and module.training is training:
                kinds[type(module).__name__] = kinds.get(type(module).__name__, 0) + 1
        return ["%d %s" % (count, name) for name, count in kinds.items()]


def install(torch: Any, session: RankSession) -> None:
    """Read the mode before each step; loaders.py reports the batches of evaluations."""
    session.modes = modes = ModeChecks(torch, session)
    session.before_step.append(session.wrap_part(PART, modes.before_step))
    session.on_leader_chosen.append(session.wrap_part(PART, modes.on_leader_chosen))
    session.on_fork.append(modes.forget)
