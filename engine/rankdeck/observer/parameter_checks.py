"""Checks whether parameters, gradients and optimizers belong together.

Gradients are examined before sampled steps of the leading optimizer. If trainable parameters have had no
gradient in any of the first examined steps, the next step is probed: a global forward hook, removed after
that step, records which of their modules run, so that a head that is merely unused is not reported. Read
steps.py first.
"""

from __future__ import annotations

import sys
import weakref

from .models import list_parameters, uses_compiler
from .readings import has_active_modes
from .weight_digests import parameter_names, plain_name
from .wrappers import SHARDED_WRAPPERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "belonging"
_NUM_EXAMINED = 15
"""Number of examined steps after which a parameter without a gradient is taken to have none."""
_NUM_ALL_MISSING = 4
_NUM_UPDATES = 10
"""Number of updates whose effect on a few weights is examined."""
_MAX_PROBED = 3
_MAX_PROBED_ELEMENTS = 1 << 14
_MIN_CHANGED_SHARE = 0.05
_MAX_FRAMES = 60


class ParameterChecks:
    """Gradients and updates of the leading optimizer's parameters, as examined so far."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self.forget()

    def forget(self) -> None:
        self._num_examined = self._num_all_missing = 0
        self._first_examined = 0
        self._without: dict[int, Any] | None = None
        """Trainable parameters that have had no gradient in any examined step, by id."""
        self._probe: Any = None
        """Handle of the global forward hook while a step is probed."""
        self._ran: dict[int, str] = {}
        """How the module of a parameter without gradients ran in the probed step, by the parameter's id."""
        self._is_done = False
        self._before: list[Any] = []
        """(parameter, copy of it) before the step that is running."""
        self._changed: list[float] = []
        """Share of the examined elements that each examined update has changed."""
        self._rate: float | None = None
        self._stepped: list[Any] = []
        """Weak references to the optimizers that have stepped since the last backward."""
        self._pairs: set[tuple[int, int]] = set()
        self._ddp_parameters: list[Any] = []

    def on_backward(self, _: Any) -> None:
        """Handle the start of an outermost backward."""
        if self._stepped:
            self._stepped = []

    def before_step(self, optimizer: Any, leads: bool) -> None:
        """Examine the gradients before a sampled step of the leading optimizer."""
        if not leads or len(self._session.optimizers) > 1:
            if self._stepped:
                self._compare_optimizers(optimizer)
            self._stepped.append(weakref.ref(optimizer))
        if self._probe is not None and leads:
            self._end_probe()
        if not leads or not self._session.is_step_sampled:
            return
        losses = self._session.losses
        if losses is None or losses.backwards == 0:
            return  # A closure computes the gradients inside the step.
        if not self._is_done or self._session.is_checked:
            self._examine(optimizer)
        if len(self._changed) < _NUM_UPDATES and not has_active_modes(self._torch):
            self._copy_some(optimizer)

    # Which parameters have gradients.

    def _examine(self, optimizer: Any) -> None:
        trainable = {id(p): p for p in list_parameters(optimizer) if p.requires_grad}
        if self._without is None:
            self._without = {key: weakref.ref(p) for key, p in trainable.items()}
        with_gradient = [key for key, p in trainable.items() if p.grad is not None]
        for key in with_gradient:
            self._without.pop(key, None)
        self._num_examined += 1
        if self._num_examined == 1:
            self._first_examined = self._session.step + 1
        if trainable and not with_gradient:
            self._num_all_missing += 1
            if self._num_all_missing == _NUM_ALL_MISSING:
                self._is_done = True
                self._report_foreign(optimizer, trainable)
            return
        self._num_all_missing = 0
        if self._num_examined == 2:
            self._report_left_out(optimizer)
        if self._num_examined == _NUM_EXAMINED:
            self._is_done = True
            if self._without and not uses_compiler():
                hook = self._torch.nn.modules.module.register_module_forward_pre_hook
                self._probe = hook(self._on_forward)

    def _report_foreign(self, optimizer: Any, trainable: dict[int, Any]) -> None:
        """Report an optimizer none of whose parameters has a gradient."""
        session = self._session
        if session.order is not None and session.order.is_zeroed:
            return  # The gradients were cleared after backward: step_order.py reports that.
        models = [model for model in (ref() for ref in session.models) if model is not None]
        foreign = {
            id(p) for model in models for p in model.parameters() if p.grad is not None
        } - trainable.keys()
        session.report_anomaly(
            "optimizer-without-gradients",
            names=[type(optimizer).__name__],
            step=max(1, session.step + 2 - _NUM_ALL_MISSING),
            parameters=len(trainable),
            foreign=len(foreign),
            sharded=float(session.facts.get("wrapper") in SHARDED_WRAPPERS),
        )

    def _report_left_out(self, optimizer: Any) -> None:
        """Report parameters of the model that have a gradient, but that no optimizer steps."""
        session = self._session
        stepped = {
            id(p)
            for other in (ref() for ref in session.optimizers)
            if other is not None
            for p in list_parameters(other)
        }
        model = next((m for m in (ref() for ref in session.models) if m is not None), None)
        if model is None or not stepped:
            return
        left_out: list[str] = []
        is_after = False
        for name, parameter in model.named_parameters():
            if id(parameter) in stepped:
                is_after = True
            # Only after the first parameter that is stepped: a frozen backbone is left out on purpose.
            elif is_after and parameter.requires_grad and parameter.grad is not None:
                left_out.append(plain_name(name))
        if left_out:
            owned = {id(p) for p in model.parameters()}
            group_parameters = list_parameters(optimizer)
            session.report_anomaly(
                "gradient-without-optimizer",
                names=left_out,
                step=session.step + 1,
                replaced=sum(id(p) not in owned for p in group_parameters),
            )

    def _on_forward(self, module: Any, _: Any) -> None:
        try:
            for parameter in module._parameters.values():
                if parameter is None or id(parameter) not in (self._without or {}):
                    continue
                if self._torch.is_grad_enabled():
                    self._ran[id(parameter)] = "graph"
                elif self._is_in_checkpoint():
                    self._ran.setdefault(id(parameter), "checkpoint")
        except Exception as error:
            self._session.disable_part(PART, error)

    def _is_in_checkpoint(self) -> bool:
        """Check whether a re-entrant checkpoint runs, which computes its forward without gradients."""
        frame: Any = sys._getframe(2)
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if frame.f_code.co_filename.endswith("checkpoint.py"):
                return True
            frame = frame.f_back
        return False

    def _end_hook(self) -> None:
        if self._probe is not None:
            self._probe.remove()
            self._probe = None

    def _end_probe(self) -> None:
        self._end_hook()
        without = {key: ref() for key, ref in (self._without or {}).items()}
        names = parameter_names(self._session)
        for how in ("checkpoint", "graph"):
            keys = [
                key
                for key, p in without.items()
                if p is not None and p.grad is None and self._ran.get(key) == how
            ]
            if keys:
                self._session.report_anomaly(
                    "no-gradient-" + how,
                    names=[names.get(key, "parameter %d" % number) for number, key in enumerate(keys)],
                    step=self._first_examined,
                    trainable=len(names),
                )

    # Which optimizers share parameters, and what was frozen.

    def _compare_optimizers(self, optimizer: Any) -> None:
        ids: set[int] | None = None
        for reference in self._stepped:
            other = reference()
            pair = (id(other), id(optimizer))
            if other is None or other is optimizer or pair in self._pairs or len(self._pairs) > _NUM_EXAMINED:
                continue
            self._pairs.add(pair)
            ids = ids or {id(p) for p in list_parameters(optimizer)}
            shared = {id(p) for p in list_parameters(other)} & ids
            if shared:
                names = parameter_names(self._session)
                self._session.report_anomaly(
                    "stepped-twice",
                    names=[names.get(key, "a parameter") for key in sorted(shared)],
                    step=self._session.step + 1,
                )

    def on_leader_chosen(self, optimizer: Any) -> None:
        """Start over with this optimizer, and remember what DistributedDataParallel expects to have
        gradients."""
        stepped = self._stepped
        self._end_hook()
        self.forget()
        self._stepped = stepped
        models = (reference() for reference in self._session.models)
        self._ddp_parameters = [
            (plain_name(name), weakref.ref(parameter))
            for model in models
            if type(model).__name__ == "DistributedDataParallel"
            for name, parameter in model.named_parameters()
            if any(parameter is other for other in getattr(model, "_module_parameters", ()))
        ]

    def on_tick(self) -> None:
        """Report parameters that were frozen after DistributedDataParallel was created."""
        frozen = [
            name
            for name, reference in self._ddp_parameters
            if (parameter := reference()) is not None and not parameter.requires_grad
        ]
        if frozen:
            self._ddp_parameters = []
            self._session.report_anomaly("frozen-after-wrapping", names=frozen)

    # Whether updates change the weights.

    def _copy_some(self, optimizer: Any) -> None:
        """Copy a few weights before a step."""
        if self._session.facts.get("wrapper") in SHARDED_WRAPPERS:
            return
        self._before = []
        groups = getattr(optimizer, "param_groups", None) or [{}]
        rate = groups[0].get("lr") if isinstance(groups[0], dict) else None
        if not isinstance(rate, (int, float)) or rate <= 0:
            return
        if self._rate is not None and rate > 2 * self._rate:
            self._changed = []  # The rate is still rising.
        if not self._changed:
            self._rate = float(rate)
        for group in groups[:_MAX_PROBED]:
            for parameter in group.get("params", ()):
                if (
                    type(parameter) is self._torch.nn.Parameter
                    and parameter.grad is not None
                    and parameter.grad.layout is self._torch.strided
                    and parameter.dim() > 1
                    and parameter.is_contiguous()
                    and len(self._before) < _MAX_PROBED
                ):
                    part = parameter.detach().view(-1)[:_MAX_PROBED_ELEMENTS]
                    with_gradient = parameter.grad.detach().reshape(-1)[:_MAX_PROBED_ELEMENTS] != 0
                    self._before.append((part, part.clone(), with_gradient))

    def on_step(self, optimizer: Any) -> None:
        """Compare the copied weights after the step."""
        if not self._before:
            return
        changed = total = 0
        for part, copy, with_gradient in self._before:
            changed += int(((part != copy) & with_gradient).sum())
            total += int(with_gradient.sum())
        dtype = str(self._before[0][0].dtype)
        self._before = []
        if not total:
            return
        self._changed.append(changed / total)
        if len(self._changed) < _NUM_UPDATES:
            return
        share = sum(self._changed) / len(self._changed)
        if share < _MIN_CHANGED_SHARE:
            self._session.report_anomaly(
                "weights-unchanged",
                names=[dtype.replace("torch.", "")],
                step=max(1, self._session.step + 1 - _NUM_UPDATES),
                share=share,
                rate=self._rate or 0.0,
            )


def install(torch: Any, session: RankSession) -> None:
    """Examine sampled steps of the leading optimizer."""
    checks = ParameterChecks(torch, session)
    session.on_backward.append(session.wrap_part(PART, checks.on_backward))
    session.before_step.append(session.wrap_part(PART, checks.before_step))
    session.on_step.append(session.wrap_part(PART, checks.on_step))
    session.on_leader_chosen.append(session.wrap_part(PART, checks.on_leader_chosen))
    session.on_tick.append(session.wrap_part(PART, checks.on_tick))
    session.on_fork.append(checks.forget)
