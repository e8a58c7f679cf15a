"""Checks whether updates change the weights, or are lost to rounding.

A few weights are copied before sampled steps and compared after them. A bfloat16 weight keeps its value if
the update is less than about 0.2 % of it. Plain rounding leaves the same elements unchanged in each step.
Optimizers that compensate (stochastic rounding, Kahan summation, float32 copies of the weights) change
different elements each time, so the elements that changed in any of the examined steps are counted too. Read
parameter_checks.py first.
"""

from __future__ import annotations

from .readings import has_active_modes, is_capturing
from .wrappers import SHARDED_WRAPPERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_NUM_UPDATES = 10
"""Number of updates whose effect on a few weights is examined."""
_MAX_PROBED = 3
_MAX_PROBED_ELEMENTS = 1 << 14
_MIN_CHANGED_SHARE = 0.05
_MIN_CHANGED_SHARE_ADAM = 0.25
"""Minimum changed share of half-precision weights under Adam, whose updates all have about the same size.
Measured against float32 over 300 steps: with shares above 0.5, bfloat16 weights made 70 to 100 % of the
progress; with shares below 0.25, 13 to 63 %. SGD's few large updates are not lost: 93 % with a share of
0.15."""
_MAX_UNION_RATIO = 2.7
"""Maximum ratio of elements changed in any update to those changed in one update, without compensation.
Measured: 1.0 to 2.5 with plain rounding, 3.0 to 6.6 with stochastic rounding or float32 copies."""
_MIN_ALWAYS_TRAINED = 64


class UpdateChecks:
    """Compares a few weights before and after updates of the leading optimizer."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self.forget()

    def forget(self) -> None:
        self._before: list[Any] = []
        """(weights, their copy from before the current step, mask of the elements with a gradient)."""
        self._rate: float | None = None
        self._is_adam = False
        self._reset()

    def _reset(self) -> None:
        self._changed: list[float] = []
        """Share of the examined elements that each examined update has changed."""
        self._union: list[Any] = []
        """For each of the examined parameters, (elements changed in any update, elements with a gradient in
        all updates)."""

    def on_leader_chosen(self, _: Any) -> None:
        """Discard the copies and the results, because another optimizer leads from now on."""
        self.forget()

    def before_sampled_step(self, optimizer: Any, leads: bool, _: Any) -> None:
        """Copy a few weights before a sampled step."""
        session = self._session
        if not leads or len(self._changed) >= _NUM_UPDATES:
            return
        losses = session.losses
        # A closure computes the gradients inside the step.
        if losses is None or losses.backwards == 0:
            return
        if has_active_modes(self._torch) or is_capturing(self._torch):
            return
        if session.facts.get("wrapper") in SHARDED_WRAPPERS:
            return
        self._copy_some(optimizer)

    def _copy_some(self, optimizer: Any) -> None:
        self._before = []
        groups = getattr(optimizer, "param_groups", None) or [{}]
        rate = groups[0].get("lr") if isinstance(groups[0], dict) else None
        if not isinstance(rate, (int, float)) or rate <= 0:
            return
        if self._rate is not None and rate > 1.001 * self._rate:
            self._reset()  # The rate is still rising.
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
                    self._is_adam = "exp_avg_sq" in optimizer.state.get(parameter, ())

    def on_sampled_step(self, _: Any) -> None:
        """Compare the weights with their copies after a sampled step."""
        if not self._before:
            return
        masks = [((part != copy) & trained, trained) for part, copy, trained in self._before]
        dtype = str(self._before[0][0].dtype).replace("torch.", "")
        self._before = []
        changed, total = self._count(masks)
        if not total:
            return
        # The parameters with a gradient may change, for example from one task to the next.
        if len(masks) != len(self._union) or any(
            mask.shape != union.shape for (mask, _), (union, _) in zip(masks, self._union)
        ):
            self._reset()  # Other parameters than in the update before.
            self._union = masks
        else:
            self._union = [
                (union | mask, always & trained)
                for (mask, trained), (union, always) in zip(masks, self._union)
            ]
        self._changed.append(changed / total)
        if len(self._changed) == _NUM_UPDATES:
            self._judge(dtype)

    def _count(self, masks: list[Any]) -> tuple[int, int]:
        return sum(int(mask.sum()) for mask, _ in masks), sum(int(trained.sum()) for _, trained in masks)

    def _judge(self, dtype: str) -> None:
        share = sum(self._changed) / len(self._changed)
        masks, self._union = [(union & always, always) for union, always in self._union], []
        is_half = dtype in ("bfloat16", "float16")
        if share >= (_MIN_CHANGED_SHARE_ADAM if is_half and self._is_adam else _MIN_CHANGED_SHARE):
            return
        # Elements that have a gradient only now and then would look as if they had been left unchanged.
        if is_half and share > 0:
            changed, total = self._count(masks)
            if total < _MIN_ALWAYS_TRAINED or changed / total > _MAX_UNION_RATIO * share:
                return
        self._session.report_anomaly(
            "weights-unchanged",
            names=[dtype],
            step=max(1, self._session.step + 1 - _NUM_UPDATES),
            share=share,
            rate=self._rate or 0.0,
        )
