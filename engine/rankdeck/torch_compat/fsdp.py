"""fully_shard for ranks that use different weights: all ranks reduce-scatter gradients of all weights of a
group.

torch reduce-scatters only gradients that exist. Ranks that used different weights would hang if their
gradients differed in total size; if the sizes were equal, gradients of different weights would be summed.
Since 2.13 torch can scatter zeros for missing gradients (`set_reduce_scatter_unused_params`), but does not
report for which weights it does so.

Source: torch.distributed.fsdp._fully_shard._fsdp_param_group, FSDPParamGroup.post_backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from rankdeck.torch_compat.private_api import PrivateApi

_WRONG_FSDP = "fsdp hangs or sums wrong gradients if ranks use different weights"
PRIVATE_APIS = (
    PrivateApi(
        "the _get_fsdp_state of an FSDPModule", _WRONG_FSDP, lookup=lambda: FSDPModule._get_fsdp_state
    ),
    PrivateApi(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward", _WRONG_FSDP
    ),
)


def scatter_missing_as_zeros(module: FSDPModule, use: Callable[[nn.Parameter], object]) -> None:
    """Make FSDP scatter zeros for every weight of the module's own parameter group that got no gradient.

    Before each scatter, `use` is called with the sharded parameter of each weight that got a gradient.
    """
    state: Any = module._get_fsdp_state()
    group = state._fsdp_param_group

    def post_backward(*unused: Any) -> None:
        if group.reduce_grads:
            _fill_missing_gradients(group.fsdp_params, use)
        FSDPParamGroup.post_backward(group, *unused)

    if group is not None:
        group.post_backward = post_backward


def _fill_missing_gradients(params: list[Any], use: Callable[[nn.Parameter], object]) -> None:
    gathered = [param for param in params if hasattr(param, "_unsharded_param")]
    added_up = [param.unsharded_accumulated_grad for param in gathered]
    # Gradients of earlier microsteps may be kept in another dtype, and a group's gradients are sent in one.
    dtype = next((gradient.dtype for gradient in added_up if gradient is not None), None)
    for param, sum_so_far in zip(gathered, added_up, strict=True):
        weight = param._unsharded_param
        if not weight.requires_grad:
            continue
        if weight.grad is not None or sum_so_far is not None:
            use(param.sharded_param)
        if dtype is not None and sum_so_far is None:
            param.unsharded_accumulated_grad = torch.zeros_like(weight, dtype=dtype)
        elif weight.grad is None and sum_so_far is None:
            weight.grad = torch.zeros_like(weight)
