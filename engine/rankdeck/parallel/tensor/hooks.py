"""Gradient hooks of a weight that is cut: each rank's slice must become what it becomes in the whole."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.torch_compat.fake_tensors import active_mode
from rankdeck.torch_compat.marks import WeightMarks


def require_hooks_take_slices(name: str, weight: nn.Parameter, marks: WeightMarks) -> None:
    """Try the hooks out on a gradient that is cut like a weight.

    Raises: ModelError.
    """
    data = weight.detach()
    if not marks.has_hooks or not isinstance(data, DTensor) or active_mode() is not None:
        return
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(data.shape, generator=generator).to(data.to_local().device, data.dtype)
    whole = run_hooks(marks, torch.zeros_like(gradient), gradient)
    try:
        cut = distribute_tensor(gradient, data.device_mesh, data.placements, src_data_rank=None)
        ours = run_hooks(marks, torch.zeros_like(cut), cut)
    except RuntimeError:  # torch's, of a slice beside a tensor of another kind or size
        ours = None
    if ours is not None and whole is not None:
        theirs = distribute_tensor(whole, data.device_mesh, data.placements, src_data_rank=None)
        assert isinstance(ours, DTensor)
        if is_close(ours.redistribute(placements=data.placements).to_local(), theirs.to_local()):
            return
    raise ModelError(
        phrase("A gradient hook of {name} needs the whole weight's gradient, which tensor cuts.", name=name),
        code="gradient-hook",
        path="strategy.use",
        advice=phrase(
            "Use ddp or fsdp, which call it with the whole one, or leave the layer out of the plan."
        ),
        cure={"strategy.use": "ddp"},
    )


def run_hooks(marks: WeightMarks, weight: Tensor, gradient: Tensor) -> Tensor | None:
    """What the hooks of a weight make of its first gradient. None where they take it away or change the
    weight: they step it themselves."""
    made = gradient.clone()
    for hook in marks.on_gradient:
        changed = hook(made)
        made = made if changed is None else changed
    twin = nn.Parameter(weight.clone())
    WeightMarks(marks.attributes).put_on(twin)
    twin.grad = made.detach()
    for after in marks.after_gradient:
        after(twin)
    is_changed = not bool((twin.detach() == weight).all())
    return None if is_changed else twin.grad


def is_close(ours: Tensor, theirs: Tensor) -> bool:
    """Up to rounding, relative to the largest number."""
    if not ours.numel():
        return True
    bound = 64 * torch.finfo(ours.dtype).eps * float(torch.maximum(ours.abs(), theirs.abs()).max())
    return bool(((ours - theirs).abs() <= bound).all())
