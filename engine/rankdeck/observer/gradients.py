"""Reads the learning rate and the gradient norm of an optimizer at sampled steps.

The norm covers all of the optimizer's gradients as stored in `.grad`, that is, after any clipping. The norm
is unknown if the gradients are shards of larger parameters, sparse, or still scaled. Read steps.py first.
"""

from __future__ import annotations

from .readings import ScalarReader, has_active_modes, is_capturing
from .wrappers import SHARDED_WRAPPERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession


class GradientReader:
    """Reads an optimizer's learning rate, and its gradient norm before or after its step."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self._readings = ScalarReader(torch)
        self._half_dtypes = (torch.float16, torch.bfloat16)

    def norm_before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Return the gradient norm before a step without a closure; None if no backward pass has run yet."""
        losses = self._session.losses
        if _closure(args, kwargs) is not None or (losses is not None and losses.backwards == 0):
            return None
        return self._norm(optimizer)

    def norm_after_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Return the gradient norm after a step whose closure ran one backward pass; otherwise None."""
        losses = self._session.losses
        if _closure(args, kwargs) is None or losses is None or losses.backwards_in_step != 1:
            return None
        return self._norm(optimizer)

    def learning_rate(self, optimizer: Any) -> Any:
        """Return the learning rate of the first parameter group."""
        rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
        if isinstance(rate, self._torch.Tensor):
            return None if has_active_modes(self._torch) else self._readings.read(rate)
        return float(rate) if isinstance(rate, (int, float)) else None

    def _norm(self, optimizer: Any) -> Any:
        torch = self._torch
        if (
            self._session.facts.get("wrapper") in SHARDED_WRAPPERS
            or getattr(optimizer, "grad_scale", None) is not None
        ):
            return None
        gradients = [
            p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        ]
        if not gradients or has_active_modes(torch):
            return None
        device = gradients[0].device
        if device.type not in ("cpu", "cuda") or any(
            type(g) is not torch.Tensor or g.layout is not torch.strided or g.device != device
            for g in gradients
        ):
            return None
        # Kernels launched during a capture would become part of the script's CUDA graph.
        if device.type == "cuda" and is_capturing(torch):
            return None
        with torch.no_grad():
            if any(g.dtype in self._half_dtypes for g in gradients):
                # One by one: an fp32 copy of all gradients at once may not fit into memory.
                norms = [
                    torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32))
                    for g in gradients
                ]
            else:
                norms = torch._foreach_norm(gradients)
            return self._readings.read(torch.linalg.vector_norm(torch.stack([n.double() for n in norms])))


def _closure(args: Any, kwargs: Any) -> Any:
    """Return the closure that was passed to the step; `args` starts with the optimizer."""
    closure = kwargs.get("closure")
    return closure if closure is not None else args[1] if len(args) > 1 and callable(args[1]) else None
