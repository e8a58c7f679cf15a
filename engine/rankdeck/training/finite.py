"""Where a loss stopped being a number: the inputs, the weights, or the first module whose output is not
finite.

Asked once, after the fact, by running the same batch again with a hook on every module.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankdeck.base.phrases import Phrase, marked, phrase
from rankdeck.parallel.nested import call, cast, each_tensor, tensors_of
from rankdeck.torch_compat.dtensors import local_part
from rankdeck.training.reporting import not_taken

_NAN = {
    "batch": marked(
        "The loss became NaN in step {step} on rank {rank}, first seen in the batch itself (input {name})."
    ),
    "weights": marked(
        "The loss became NaN in step {step} on rank {rank}, first seen in the weights already ({name}): an "
        "update before this step made them so."
    ),
    "built": marked(
        "The loss became NaN in step {step} on rank {rank}, first seen in the weights ({name}): the model "
        "was built so."
    ),
    "forward": marked(
        "The loss became NaN in step {step} on rank {rank}, first seen in the forward or the loss: the batch "
        "and this rank's weights are finite."
    ),
    "again": marked(
        "The loss became NaN in step {step} on rank {rank}, first seen in the forward or the loss (running "
        "the batch again raised {name})."
    ),
    "output": marked(
        "The loss became NaN in step {step} on rank {rank}, first seen in the output of {name}."
    ),
    "model": marked(
        "The loss became NaN in step {step} on rank {rank}, first seen in the output of the model as a whole."
    ),
    "loss": marked(
        "The loss became NaN in step {step} on rank {rank}, first seen in the loss itself: every module's "
        "output is finite."
    ),
}
_INFINITE = {
    "batch": marked(
        "The loss became infinite in step {step} on rank {rank}, first seen in the batch itself (input "
        "{name})."
    ),
    "weights": marked(
        "The loss became infinite in step {step} on rank {rank}, first seen in the weights already "
        "({name}): an update before this step made them so."
    ),
    "built": marked(
        "The loss became infinite in step {step} on rank {rank}, first seen in the weights ({name}): the "
        "model was built so."
    ),
    "forward": marked(
        "The loss became infinite in step {step} on rank {rank}, first seen in the forward or the loss: the "
        "batch and this rank's weights are finite."
    ),
    "again": marked(
        "The loss became infinite in step {step} on rank {rank}, first seen in the forward or the loss "
        "(running the batch again raised {name})."
    ),
    "output": marked(
        "The loss became infinite in step {step} on rank {rank}, first seen in the output of {name}."
    ),
    "model": marked(
        "The loss became infinite in step {step} on rank {rank}, first seen in the output of the model as a "
        "whole."
    ),
    "loss": marked(
        "The loss became infinite in step {step} on rank {rank}, first seen in the loss itself: every "
        "module's output is finite."
    ),
}


class FirstSeen(NamedTuple):
    """One of the above, and which input, weight, module or exception."""

    what: str
    name: str = ""

    def told(self, loss: float, step: int, rank: int) -> Phrase:
        words = _NAN if math.isnan(loss) else _INFINITE
        what = "built" if self.what == "weights" and step == 1 else self.what
        return phrase(words[what], step=step, rank=rank, name=self.name)


class _Found(Exception):  # noqa: N818 - it ends a forward early and is no error
    pass


def first_non_finite(module: nn.Module, inputs: Any, *, alone: bool = True) -> FirstSeen:
    """The first place where a value is NaN or infinite.

    Where a rank cannot run the forward alone (its weights are shards), only the batch and the rank's own
    weights are looked at.
    """
    for index, tensor in enumerate(tensors_of(inputs)):
        if not _is_finite(tensor):
            return FirstSeen("batch", str(index))
    for name, parameter in module.named_parameters():
        if not _is_finite(local_part(parameter)):
            return FirstSeen("weights", name)
    if not alone:
        return FirstSeen("forward")
    return _by_running_again(module, _as_the_module_takes(inputs, module))


def _as_the_module_takes(inputs: Any, module: nn.Module) -> Any:
    """The loader's batch on the module's device and in its precision."""
    weight = next(module.parameters())
    return each_tensor(cast(inputs, weight.dtype), lambda tensor: tensor.to(weight.device))


def _by_running_again(module: nn.Module, inputs: Any) -> FirstSeen:
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
        with torch.no_grad(), not_taken():
            call(module, inputs)
    except _Found:
        return FirstSeen("output", place[0]) if place[0] else FirstSeen("model")
    except Exception as error:  # the loss is what the person must hear of, not this
        return FirstSeen("again", type(error).__name__)
    finally:
        for handle in handles:
            handle.remove()
    return FirstSeen("loss")


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
