"""Checks the order of the calls in a step: backward, unscale, clip, optimizer step, zero_grad.

A check reports an anomaly after it has failed in a few steps in a row, except for clipping gradients that are
still scaled, which is reported at once. Whether DistributedDataParallel reduces gradients is read from its
attribute `require_forward_param_sync`, which is False after a forward pass whose gradients will not be
reduced. Read steps.py and losses.py first.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref

from .frames import drop_own_frame, script_line
from .loss_scale import scale_of
from .models import list_parameters, uses_compiler
from .readings import has_active_modes, is_capturing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "order"
_NUM_IN_A_ROW = 4
"""Number of steps in a row in which a check must fail before it reports an anomaly."""
_NUM_CLEARED = 4
"""Number of steps with cleared gradients after which the script is assumed to always clear them."""
_NUM_CHECKED = 50
"""Number of steps whose backward calls are examined for accumulated losses that are not divided."""
_MAX_ROOTS = 64
_MAX_OWNERS = 64
_DDP = "DistributedDataParallel"
_DIVIDING_NODES = ("DivBackward0", "MulBackward0")


class StepOrder:
    """The calls since the leading optimizer's last step."""

    def __init__(self, session: RankSession) -> None:
        self._session = session
        # With `--observe check`, no number of steps without a fault ends a check.
        self._most_cleared = math.inf if session.is_checked else _NUM_CLEARED
        self._most_checked = math.inf if session.is_checked else _NUM_CHECKED
        self.forget()

    def forget(self) -> None:
        self._ddps: list[Any] = []
        """Weak references to the DistributedDataParallel modules with the leading optimizer's parameters."""
        self._is_reduced = True
        self._has_reported_unreduced = False
        self._scale: Any = None
        """Scale of the loss of the last backward pass, while its gradients are still scaled."""
        self._probe: Any = None
        """Weak reference to the parameter whose gradient is examined."""
        self._owners: dict[int, tuple[Any, bool]] = {}
        """(weak reference, whether it has the examined parameter) of each object on which `zero_grad` was
        called, by id."""
        self._kept: Any = None
        """(weak reference to the gradient, its version) of the examined parameter after the last step."""
        self._is_cleared = False
        self._num_cleared: float = 0
        self._num_uncleared = 0
        self.is_zeroed = False
        """Whether the gradients were cleared by `zero_grad` after the last backward pass."""
        self._zeroed: Any = None
        """(gradient, version) of the examined parameter when the last call of `zero_grad` began."""
        self._num_zeroed = self._num_bypassed = 0
        self._roots: list[str | None] = []
        """Names of the losses' graph nodes in the backward calls since the last step."""
        self._num_backwards = 0
        self._num_undivided = 0
        self._num_checked: float = 0
        self._leader: Any = None

    def on_leader_chosen(self, optimizer: Any) -> None:
        """Choose the parameter to examine, and find the DistributedDataParallel wrappers around the model."""
        self.forget()
        self._leader = weakref.ref(optimizer)
        parameters = [p for p in list_parameters(optimizer) if p.grad is not None]
        smallest = min(parameters, key=lambda p: int(p.numel()), default=None)
        self._probe = None if smallest is None else weakref.ref(smallest)
        self.find_wrappers(optimizer)

    def find_wrappers(self, optimizer: Any) -> None:
        ids = {id(p) for p in list_parameters(optimizer)}
        self._ddps = [
            reference
            for reference in self._session.models
            if (model := reference()) is not None
            and type(model).__name__ == _DDP
            and any(id(p) in ids for p in model.parameters())
        ]

    def on_backward(self, tensors: Any) -> None:
        """Handle the start of a backward pass that is not nested in another."""
        self.is_zeroed = False
        self._num_backwards += 1
        for reference in self._ddps:
            ddp = reference()
            self._is_reduced = ddp is None or getattr(ddp, "require_forward_param_sync", True)
        losses = self._session.losses
        node = tensors[0].grad_fn if len(tensors) == 1 else None
        self._scale = scale_of(node) if losses is not None and losses.with_scaler and node else None
        if self._num_checked < self._most_checked and len(self._roots) < _MAX_ROOTS:
            self._roots.append(None if node is None or self._scale is not None else node.name())
        if self._num_cleared < self._most_cleared and self._kept is not None and not self._is_cleared:
            probe = self._probe and self._probe()
            gradient, version = self._kept
            # A later backward of the same step has added to the gradient, which changes its version too.
            is_first = self._num_backwards == 1
            now = None if probe is None else probe.grad
            self._is_cleared = now is None or now is not gradient() or (is_first and now._version != version)
            # `grad.data.zero_()` does not change the version. Only what looks like a fault is read.
            if is_first and not self._is_cleared:
                self._is_cleared = _is_zero(now)

    def on_zero_grad(self, owner: Any, *_: Any, **__: Any) -> None:
        """Handle a call of `zero_grad` of an optimizer or of a module."""
        leads = self._leader is not None and self._leader() is owner
        if not leads and not self._has_probe(owner):
            return  # Another model's gradients.
        self._is_cleared = self.is_zeroed = True
        probe = self._probe and self._probe()
        gradient = None if probe is None else probe.grad
        self._zeroed = None if gradient is None else (weakref.ref(gradient), gradient._version)
        self._roots.clear()

    def _is_written(self) -> bool:
        """Check whether the script has written a gradient, such as a projected one, after `zero_grad`."""
        probe = self._probe and self._probe()
        gradient = None if probe is None else probe.grad
        if gradient is None:
            return False
        if self._zeroed is None or self._zeroed[0]() is not gradient:
            return True
        # zero_grad(set_to_none=False) itself changes it once.
        return bool(gradient._version > self._zeroed[1] + 1)

    def _has_probe(self, owner: Any) -> bool:
        """Check whether the examined parameter belongs to `owner`, an optimizer or a module."""
        owned = self._owners.get(id(owner))
        if owned is None or owned[0]() is not owner:
            # Once per owner: a script calls this in each step.
            probe, leader = self._probe and self._probe(), self._leader and self._leader()
            ids = {id(p) for p in ([probe] if probe is not None else list_parameters(leader))}
            parameters = list_parameters(owner) if hasattr(owner, "param_groups") else owner.parameters()
            owned = weakref.ref(owner), not ids or any(id(p) in ids for p in parameters)
            if len(self._owners) < _MAX_OWNERS:
                self._owners[id(owner)] = owned
        return owned[1]

    def on_unscale(self) -> None:
        """Handle a call of a scaler's `unscale_`."""
        self._scale = None

    def on_clip(self, limit: Any) -> None:
        """Handle a call of a function that clips gradients to `limit`."""
        if self._scale is None:
            return
        scale, self._scale = float(self._scale), None
        # A limit above the scale was multiplied by it on purpose.
        if isinstance(limit, (int, float)) and limit < scale and scale > 1:
            self._session.report_anomaly(
                "clip-before-unscale", line=script_line(), step=self._next_step, scale=scale, limit=limit
            )

    @property
    def _next_step(self) -> int:
        return self._session.step + 1

    def before_step(self, optimizer: Any, leads: bool) -> None:
        """Handle the start of a step."""
        if not leads:
            return
        session = self._session
        if not self._is_reduced and not self._has_reported_unreduced:
            self._has_reported_unreduced = True
            # The digests show whether the weights then differ: local SGD averages them later.
            session.report_anomaly("gradients-not-reduced", line=script_line(), step=self._next_step)
        if self.is_zeroed and not self._is_written():
            self._num_zeroed += 1
            if self._num_zeroed == _NUM_IN_A_ROW:
                first = self._next_step - _NUM_IN_A_ROW + 1
                session.report_anomaly("zeroed-before-step", line=script_line(), step=first)
        else:
            self._num_zeroed = 0
        if self._num_bypassed < _NUM_IN_A_ROW and session.facts.get("wrapper") == _DDP:
            self._check_bypass()
        if self._num_cleared < self._most_cleared:
            self._check_cleared()
        if self._num_checked < self._most_checked and self._roots:
            self._check_division()

    def _check_bypass(self) -> None:
        """Report a wrapper whose `forward` has never run although its parameters are trained."""
        # A compiled module has no truth value unless the module inside it has a length.
        ddps = [ddp for ddp in (ref() for ref in self._session.models) if type(ddp).__name__ == _DDP]
        # Set by the first forward, but not by compiled code.
        run_ids = {id(p) for ddp in ddps if getattr(ddp, "_lazy_init_ran", True) for p in ddp.parameters()}
        is_bypassed = any(
            p.grad is not None and id(p) not in run_ids for ddp in ddps for p in ddp.parameters()
        )
        if not is_bypassed or uses_compiler():
            self._num_bypassed = _NUM_IN_A_ROW
            return
        self._num_bypassed += 1
        if self._num_bypassed == _NUM_IN_A_ROW:
            first = self._next_step - _NUM_IN_A_ROW + 1
            self._session.report_anomaly("wrapper-bypassed", line=script_line(), step=first)

    def _check_cleared(self) -> None:
        if self._kept is None or not self._num_backwards:
            return
        probe, (gradient, _) = self._probe and self._probe(), self._kept
        self._kept = None
        # Gradients may also be replaced after backward, as those of fp32 copies of the weights.
        self._is_cleared = self._is_cleared or probe is None or probe.grad is not gradient()
        if self._is_cleared or len(self._session.optimizers) > 1:
            self._num_cleared += 1
            self._num_uncleared = 0
            return
        self._num_uncleared += 1
        if self._num_uncleared == _NUM_IN_A_ROW:
            self._num_cleared = math.inf
            first = self._next_step - _NUM_IN_A_ROW + 1
            self._session.report_anomaly("gradients-not-cleared", line=script_line(), step=first)

    def _check_division(self) -> None:
        roots, self._roots = self._roots, []
        self._num_checked += 1
        is_undivided = len(roots) > 1 and len(set(roots)) == 1 and roots[0] is not None
        if not is_undivided or roots[0] in _DIVIDING_NODES:
            self._num_undivided = 0
            return
        self._num_undivided += 1
        if self._num_undivided == _NUM_IN_A_ROW:
            self._num_checked = math.inf
            self._session.report_anomaly(
                "accumulation-not-divided", line=script_line(), step=self._next_step, backwards=len(roots)
            )

    def on_step(self, optimizer: Any) -> None:
        """Handle the end of a step of the leading optimizer."""
        self.is_zeroed = False
        # A closure runs its backward inside the step.
        self._num_backwards = 0
        if self._num_cleared >= self._most_cleared:
            return
        probe = self._probe and self._probe()
        gradient = None if probe is None else probe.grad
        self._is_cleared = gradient is None
        self._kept = (lambda: None, 0) if gradient is None else (weakref.ref(gradient), gradient._version)


def _is_zero(gradient: Any) -> bool:
    """Check whether a gradient is 0; return False if it cannot be read now."""
    torch = sys.modules["torch"]
    is_readable = type(gradient) is torch.Tensor and gradient.layout is torch.strided
    if not is_readable or is_capturing(torch) or has_active_modes(torch):
        return False
    return not bool(gradient.detach().any())


def install(torch: Any, session: RankSession) -> None:
    """Observe steps, backward calls, `zero_grad` and the functions that clip gradients."""
    order = StepOrder(session)
    session.order = order
    session.on_leader_chosen.add(PART, order.on_leader_chosen)
    session.on_backward.add(PART, order.on_backward)
    session.before_step.add(PART, order.before_step)
    session.on_step.add(PART, order.on_step)
    session.on_fork.add(PART, order.forget)
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        _call_before(session, owner, "zero_grad", order.on_zero_grad)
    utilities = torch.nn.utils
    for name, limit in (("clip_grad_norm_", "max_norm"), ("clip_grad_value_", "clip_value")):

        def before(parameters: Any = None, *args: Any, _limit: str = limit, **kwargs: Any) -> None:
            order.on_clip(args[0] if args else kwargs.get(_limit))

        _call_before(session, utilities, name, before)


def _call_before(session: RankSession, owner: Any, name: str, before: Any) -> None:
    """Wrap the function `owner.name` so that it first calls `before` with the same arguments."""
    original = getattr(owner, name)
    is_tracing = sys.modules["torch.compiler"].is_dynamo_compiling

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return original(*args, **kwargs)
        if PART not in session.disabled_parts:
            try:
                before(*args, **kwargs)
            except Exception as error:
                session.disable_part(PART, error)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise

    # torch.compile traces no function of this folder, and would leave the graph of the script's step here.
    function: Any = observed
    function.__code__ = function.__code__.replace(co_filename=original.__code__.co_filename)
    setattr(owner, name, function)
