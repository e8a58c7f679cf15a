"""Finds out once which tensors are not finite, when a loss or a gradient norm is NaN or infinite.

Weights, buffers, gradients and the last batch are examined: on a CPU right before the optimizer step whose
loss was read; on a GPU, where a reading arrives later, before the next sampled step. Under full observation,
a hook checks the outputs of all modules to find the first module in the step whose output is not finite.
Steps that a gradient scaler skips are not examined, because the scaler does not call the optimizer. Read
losses.py and gradients.py first.
"""

from __future__ import annotations

import functools
import math
import weakref

from .frames import drop_own_frame
from .models import list_parameters, uses_compiler
from .readings import PENDING, PendingScalar, UnsampledScalar, has_active_modes, is_capturing, read_value
from .weight_digests import parameter_names, plain_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .session import RankSession

PART = "finite"
_MAX_BATCH_TENSORS = 4


class FiniteChecks:
    """Checks losses and gradient norms for NaN and infinity and, under full observation, modules' outputs."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._tensor, self._session = torch, torch.Tensor, session
        self._reads_all_steps = session.tracks_operations
        self._handle: Any = None
        self.forget()

    def forget(self) -> None:
        self._is_done = self._is_pending = False
        self._readings: list[Any] = []
        """Losses and gradient norm of the last examined step; some of them may be pending."""
        self._num_losses = self._step = 0
        self._batch: list[Any] = []
        """Weak references to tensors of the batch that was loaded last."""
        self._first: tuple[Any, bool] | None = None
        """(weak reference to the module, whether its inputs were finite) for the first output in this step
        that was not finite."""
        self._masking: Any = weakref.WeakSet()
        """Modules with non-finite outputs in a step with a finite loss, such as modules that make masks."""

    def remember_batch(self, batch: Any) -> None:
        """Remember the tensors of a batch that a loader returns."""
        items = list(batch.values()) if isinstance(batch, dict) else batch
        some = items[:_MAX_BATCH_TENSORS] if isinstance(items, (list, tuple)) else [items]
        self._batch = []
        for item in some:  # In Python 3.11, a list comprehension is a call.
            if type(item) is self._tensor:
                self._batch.append(weakref.ref(item))

    def before_step(self, optimizer: Any, leads: bool) -> None:
        """Check the losses before a step. If readings of an earlier step are pending, check those first."""
        session = self._session
        losses = session.losses
        if self._is_done or losses is None or not (leads or not session.step):
            return
        readings = []
        for reading in losses.readings:
            if type(reading) is UnsampledScalar:
                if not (session.is_step_sampled or self._reads_all_steps):
                    return
                reading = reading.read()
            readings.append(reading)
        if self._is_pending:
            self._check(optimizer)
        self._readings, self._num_losses, self._step = readings, len(readings), session.step + 1
        # As in nearly all steps: a shortcut.
        if len(readings) != 1 or type(readings[0]) is not float or not math.isfinite(readings[0]):
            self._check(optimizer)

    def before_sampled_step(self, optimizer: Any, _: bool, norm: Any) -> None:
        """Handle the gradient norm of a sampled step."""
        if not self._is_done and self._step == self._session.step + 1:
            self._readings.append(norm)
            self._check(optimizer)

    def _check(self, optimizer: Any) -> None:
        self._is_pending = False
        for number, reading in enumerate(self._readings):
            value = read_value(reading)
            self._is_pending = self._is_pending or value is PENDING
            if value is PENDING or value is None or math.isfinite(value):
                continue
            with self._session.pause_tracking():
                if not has_active_modes(self._torch) and not is_capturing(self._torch):
                    self._is_done = True
                    self._report(optimizer, number < self._num_losses, not isinstance(reading, PendingScalar))
                    self.stop()
            return

    def _report(self, optimizer: Any, is_loss: bool, is_exact: bool) -> None:
        session = self._session
        names = parameter_names(session)
        parameters = list_parameters(optimizer)
        named = [
            (names.get(id(parameter), "parameter %d" % number), parameter)
            for number, parameter in enumerate(parameters)
        ]
        weights = self._not_finite(named)
        gradients = self._not_finite((name, parameter.grad) for name, parameter in named)
        model = session.models[0]() if session.models else None
        buffers = self._not_finite(
            (plain_name(name), buffer)
            for name, buffer in (model.named_buffers() if model is not None else ())
        )
        batch = [tensor for tensor in (reference() for reference in self._batch) if tensor is not None]
        numbers: dict[str, Any] = {}
        if batch:
            numbers["batch"] = len(self._not_finite(("", tensor) for tensor in batch))
        scaler = session.scaler() if session.scaler is not None else None
        if scaler is not None and scaler.is_enabled():
            numbers["scale"] = float(scaler.get_scale())
        # With weights that are not finite, any module returns such values.
        first = self._first_module(model) if is_loss and not weights else []
        if first:
            numbers["module"] = 2.0 if self._first is not None and self._first[1] else 1.0
        elif self._handle is not None and (session.is_step_sampled or parameters[0].device.type == "cpu"):
            numbers["outputs"] = 0.0
        # A backward pass runs from the last layer to the first, so the last one is nearest to the cause.
        session.report_anomaly(
            "not-finite",
            names=first or weights or buffers or gradients[::-1],
            step=self._step,
            loss=float(is_loss),
            exact=float(is_exact),
            weights=len(weights),
            gradients=len(gradients),
            buffers=len(buffers),
            parameters=len(named),
            examined=session.step + 1,
            **numbers,
        )

    def _not_finite(self, named: Iterable[tuple[str, Any]]) -> list[str]:
        """Return the names of the tensors that have an element that is NaN or infinite."""
        torch = self._torch
        names, norms = [], []
        with torch.no_grad():
            for name, tensor in named:
                if (
                    type(tensor) in (torch.Tensor, torch.nn.Parameter)
                    and tensor.device.type in ("cpu", "cuda")
                    and tensor.layout is torch.strided
                    and tensor.is_floating_point()
                    and tensor.numel()
                ):
                    names.append(name)
                    # Unlike isfinite, this needs no memory for a copy.
                    norms.append(float(torch.linalg.vector_norm(tensor.detach(), math.inf)))
        return [name for name, norm in zip(names, norms) if not math.isfinite(norm)]

    # The modules' outputs, under full observation.

    def on_forward(self, module: Any, inputs: Any, output: Any) -> None:
        """Remember the first module whose output is not finite, and whether its inputs are finite. Do
        nothing while gradients are disabled."""
        if self._first is not None or self._is_done or not self._torch.is_grad_enabled():
            return
        if module in self._masking:
            return
        with self._session.pause_tracking():
            if not has_active_modes(self._torch) and self._has_not_finite(output):
                self._first = weakref.ref(module), not self._has_not_finite(inputs)

    def _has_not_finite(self, value: Any) -> bool:
        tensors = [value] if hasattr(value, "is_floating_point") else value
        if isinstance(tensors, dict):
            tensors = list(tensors.values())
        if not isinstance(tensors, (list, tuple)):
            return False
        for tensor in tensors:
            if not isinstance(tensor, self._torch.Tensor):
                continue
            # On a GPU, this waits.
            is_read = self._session.is_step_sampled and not is_capturing(self._torch)
            if (tensor.device.type == "cpu" or is_read) and self._not_finite([("", tensor)]):
                return True
        return False

    def on_step(self, _: Any) -> None:
        """Stop checking a module whose output was not finite in this step, although the loss was finite."""
        if self._first is not None:
            module = self._first[0]()
            if module is not None:
                self._masking.add(module)
            self._first = None

    def _first_module(self, model: Any) -> list[str]:
        module = self._first[0]() if self._first is not None else None
        if module is None or model is None:
            return []
        kind = type(module).__name__
        names = [plain_name(name) for name, other in model.named_modules() if other is module]
        return ["%s (%s)" % (names[0], kind) if names and names[0] else kind]

    def observe_modules(self) -> None:
        """Check the outputs of all modules from now on."""
        observed = self._session.wrap_part(PART, self.on_forward)
        # The result of a hook would replace the output.
        hook = self._torch.nn.modules.module.register_module_forward_hook
        self._handle = hook(lambda module, inputs, output: observed(module, inputs, output))

    def stop(self) -> None:
        """Stop checking the outputs of modules."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def install(torch: Any, session: RankSession) -> None:
    """Examine losses and gradient norms and, under full observation, the outputs of modules."""
    session.finite = checks = FiniteChecks(torch, session)
    session.before_step.add(PART, checks.before_step)
    session.before_sampled_step.add(PART, checks.before_sampled_step)
    session.on_fork.add(PART, checks.forget)
    if not session.tracks_operations or uses_compiler():
        return
    checks.observe_modules()
    session.on_step.add(PART, checks.on_step)
    compile_function = torch.compile

    @functools.wraps(compile_function)
    def observed(*args: Any, **kwargs: Any) -> Any:
        checks.stop()  # The hook would be compiled, too.
        try:
            return compile_function(*args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise

    torch.compile = observed
