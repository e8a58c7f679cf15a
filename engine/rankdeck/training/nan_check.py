"""Find where a loss became NaN or infinite: in the inputs, the weights, or a module's output.

The check runs once, after the failure: it runs the same batch again with a hook on every module.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.parallel.pytree import call_model, cast_to, map_tensors, tensor_leaves
from rankdeck.torch_compat.dtensors import local_part
from rankdeck.training.reporting import logging_disabled

_NAN_TEXTS = {
    "batch": tr_noop(
        "The loss became NaN in step {step} on rank {rank}; the first NaN or infinite value was in the "
        "batch itself (input {name})."
    ),
    "weights": tr_noop(
        "The loss became NaN in step {step} on rank {rank}; the first NaN or infinite value was in the "
        "weights ({name}): an earlier update made them NaN or infinite."
    ),
    "built": tr_noop(
        "The loss became NaN in step {step} on rank {rank}; the first NaN or infinite value was in the "
        "weights ({name}): the model was built with NaN or infinite weights."
    ),
    "forward": tr_noop(
        "The loss became NaN in step {step} on rank {rank}; the first NaN or infinite value was in the "
        "forward pass or the loss: the batch and this rank's weights are finite."
    ),
    "again": tr_noop(
        "The loss became NaN in step {step} on rank {rank}; the first NaN or infinite value was in the "
        "forward pass or the loss (running the batch again raised {name})."
    ),
    "output": tr_noop(
        "The loss became NaN in step {step} on rank {rank}; the first NaN or infinite value was in the "
        "output of {name}."
    ),
    "model": tr_noop(
        "The loss became NaN in step {step} on rank {rank}; the first NaN or infinite value was in the "
        "output of the whole model."
    ),
    "loss": tr_noop(
        "The loss became NaN in step {step} on rank {rank}; the first NaN or infinite value was in the "
        "loss itself: every module's output is finite."
    ),
}
_INFINITE_TEXTS = {
    "batch": tr_noop(
        "The loss became infinite in step {step} on rank {rank}; the first NaN or infinite value was in"
        " the batch itself (input {name})."
    ),
    "weights": tr_noop(
        "The loss became infinite in step {step} on rank {rank}; the first NaN or infinite value was in"
        " the weights ({name}): an earlier update made them NaN or infinite."
    ),
    "built": tr_noop(
        "The loss became infinite in step {step} on rank {rank}; the first NaN or infinite value was in"
        " the weights ({name}): the model was built with NaN or infinite weights."
    ),
    "forward": tr_noop(
        "The loss became infinite in step {step} on rank {rank}; the first NaN or infinite value was in"
        " the forward pass or the loss: the batch and this rank's weights are finite."
    ),
    "again": tr_noop(
        "The loss became infinite in step {step} on rank {rank}; the first NaN or infinite value was in"
        " the forward pass or the loss (running the batch again raised {name})."
    ),
    "output": tr_noop(
        "The loss became infinite in step {step} on rank {rank}; the first NaN or infinite value was in"
        " the output of {name}."
    ),
    "model": tr_noop(
        "The loss became infinite in step {step} on rank {rank}; the first NaN or infinite value was in"
        " the output of the whole model."
    ),
    "loss": tr_noop(
        "The loss became infinite in step {step} on rank {rank}; the first NaN or infinite value was in"
        " the loss itself: every module's output is finite."
    ),
}


class NonFiniteOrigin(NamedTuple):
    """Origin of a NaN or infinite loss: `kind` is a key of `_NAN_TEXTS`, `name` the input, weight, module or
    exception."""

    kind: str
    name: str = ""

    def text(self, loss: float, step: int, rank: int) -> Phrase:
        texts = _NAN_TEXTS if math.isnan(loss) else _INFINITE_TEXTS
        what = "built" if self.kind == "weights" and step == 1 else self.kind
        return phrase(texts[what], step=step, rank=rank, name=self.name)


class _NonFiniteFound(Exception):  # noqa: N818 - it ends a forward early and is no error
    pass


def find_non_finite(module: nn.Module, inputs: Any, *, forward_is_local: bool = True) -> NonFiniteOrigin:
    """Find the first value that is NaN or infinite.

    If `forward_is_local` is False, this rank cannot run the forward pass without other ranks; it then checks
    only the batch and its own weights.
    """
    for index, tensor in enumerate(tensor_leaves(inputs)):
        if not _is_finite(tensor):
            return NonFiniteOrigin("batch", str(index))
    for name, parameter in module.named_parameters():
        if not _is_finite(local_part(parameter)):
            return NonFiniteOrigin("weights", name)
    if not forward_is_local:
        return NonFiniteOrigin("forward")
    return _find_in_forward(module, _to_module(inputs, module))


def _to_module(inputs: Any, module: nn.Module) -> Any:
    """Move the loader's batch to the module's device and convert it to the module's precision."""
    weight = next(module.parameters())
    return map_tensors(cast_to(inputs, weight.dtype), lambda tensor: tensor.to(weight.device))


def _find_in_forward(module: nn.Module, inputs: Any) -> NonFiniteOrigin:
    module_names: list[str] = []

    def hook(name: str) -> Any:
        def check_output(_module: nn.Module, _args: Any, output: Any) -> None:
            if not all(_is_finite(tensor) for tensor in tensor_leaves(output)):
                module_names.append(name)
                # Later modules would only pass the NaN on.
                raise _NonFiniteFound

        return check_output

    # A module's hook runs after those of the modules inside it, so the innermost module is found first.
    handles = [child.register_forward_hook(hook(name)) for name, child in module.named_modules()]
    try:
        with torch.no_grad(), logging_disabled():
            call_model(module, inputs)
    except _NonFiniteFound:
        return NonFiniteOrigin("output", module_names[0]) if module_names[0] else NonFiniteOrigin("model")
    except Exception as error:  # the user must hear of the loss, not of this error
        return NonFiniteOrigin("again", type(error).__name__)
    finally:
        for handle in handles:
            handle.remove()
    return NonFiniteOrigin("loss")


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
