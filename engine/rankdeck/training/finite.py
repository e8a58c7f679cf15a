"""Where a loss stopped being a number: the inputs, the weights, or the first module whose output is not
finite.

Asked once, after the fact, by running the same batch again with a hook on every module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.parallel.nested import call, cast, each_tensor, tensors_of
from rankdeck.torch_compat.dtensors import local_part


class _Found(Exception):  # noqa: N818 - it ends a forward early and is no error
    pass


def first_non_finite(module: nn.Module, inputs: Any, *, alone: bool = True) -> str:
    """Words for the first place where a value is NaN or infinite, e.g. 'the output of blocks.3.attention'.

    Where a rank cannot run the forward alone (its weights are shards), only the batch and the rank's own
    weights are looked at.
    """
    for index, tensor in enumerate(tensors_of(inputs)):
        if not _is_finite(tensor):
            return f"the batch itself (input {index})"
    for name, parameter in module.named_parameters():
        if not _is_finite(local_part(parameter)):
            return f"the weights already ({name}): an update before this step made them so"
    if not alone:
        return "the forward or the loss: the batch and this rank's weights are finite"
    return _by_running_again(module, _as_the_module_takes(inputs, module))


def _as_the_module_takes(inputs: Any, module: nn.Module) -> Any:
    """The loader's batch on the module's device and in its precision."""
    weight = next(module.parameters())
    return each_tensor(cast(inputs, weight.dtype), lambda tensor: tensor.to(weight.device))


def _by_running_again(module: nn.Module, inputs: Any) -> str:
    place: list[str] = []

    def hook(name: str) -> Any:
        def look(_module: nn.Module, _args: Any, output: Any) -> None:
            if not all(_is_finite(tensor) for tensor in tensors_of(output)):
                place.append(name)
                raise _Found

        return look

    # A module's hook runs after those of the modules inside it, so the innermost place is found first.
    handles = [child.register_forward_hook(hook(name)) for name, child in module.named_modules()]
    try:
        with torch.no_grad():
            call(module, inputs)
    except _Found:
        return f"the output of {place[0] or 'the model as a whole'}"
    except Exception as error:  # the loss is what the person must hear of, not this
        return f"the forward or the loss (running the batch again raised {type(error).__name__})"
    finally:
        for handle in handles:
            handle.remove()
    return "the loss itself: every module's output is finite"


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
