"""fully_shard where ranks use different weights: those without a gradient count as zero.

torch has `FSDPModule.set_reduce_scatter_unused_params` for it since 2.13; before that, a group gets the
missing gradients right before it scatters.

Source: torch.distributed.fsdp._fully_shard._fsdp_param_group, FSDPParamGroup.post_backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from rankdeck.torch_compat.places import Private

_SETTER = "set_reduce_scatter_unused_params"


def _way() -> Any:
    """torch's own setter, or what stands in for it."""
    return getattr(FSDPModule, _SETTER, None) or FSDPModule._get_fsdp_state


PLACES = (
    Private("the way to unused weights of fsdp", "fsdp's find_unused_parameters fails", look=_way),
    Private(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
        "fsdp's find_unused_parameters fails",
    ),
)


def count_unused_as_zero(module: FSDPModule, wanted: bool) -> None:
    """Scatter gradients of zero for weights of the module's own group that got none, or leave them out."""
    setter = getattr(module, _SETTER, None)
    if setter is not None:
        setter(wanted, recurse=False)
    elif wanted:
        _fill_before_scatter(module._get_fsdp_state()._fsdp_param_group)


def _fill_before_scatter(group: Any) -> None:
    def post_backward(*unused: Any) -> None:
        for sharded in group.fsdp_params if group.reduce_grads else ():
            weight = getattr(sharded, "_unsharded_param", None)
            if weight is None or not weight.requires_grad:
                continue
            if weight.grad is None and sharded.unsharded_accumulated_grad is None:
                weight.grad = torch.zeros_like(weight)
        FSDPParamGroup.post_backward(group, *unused)

    if group is not None:
        group.post_backward = post_backward
