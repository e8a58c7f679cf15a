"""A user's attributes and gradient hooks on a weight, moved to the Parameter that replaces it.

fully_shard, the strategy `tensor`, and the code that fills a model built on the meta device create new
Parameters, and torch copies neither attributes nor hooks to them. A hook is called with the gradient of the
new Parameter; training/preflight_checks.py refuses hooks whose results for parts of a batch do not add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from rankdeck.torch_compat.private_api import PrivateApi

_HOOKS_LOST = "gradient hooks are lost under fsdp and tensor"
PRIVATE_APIS = (
    PrivateApi("torch:Tensor._backward_hooks", _HOOKS_LOST),
    PrivateApi("torch:Tensor._post_accumulate_grad_hooks", _HOOKS_LOST),
)
_PARAMETER_FLAG = "_is_param"
"""Attribute that torch sets on an instance of a tensor subclass to mark it as a Parameter."""


@dataclass(frozen=True)
class WeightMetadata:
    """Attributes and gradient hooks of a weight.

    `on_gradient` hooks are called with a gradient before it is accumulated; `after_gradient` hooks are called
    afterwards with the weight.
    """

    attributes: dict[str, object] = field(default_factory=dict)
    on_gradient: tuple[Callable[[Tensor], Tensor | None], ...] = ()
    after_gradient: tuple[Callable[[Tensor], None], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.attributes or self.has_hooks)

    @property
    def has_hooks(self) -> bool:
        return bool(self.on_gradient or self.after_gradient)

    def copy_to(self, weight: nn.Parameter) -> None:
        """Copy the attributes and hooks to another Parameter."""
        vars(weight).update(self.attributes)
        for hook in self.on_gradient:
            weight.register_hook(hook)
        for after in self.after_gradient:
            weight.register_post_accumulate_grad_hook(after)


def weight_metadata(weight: nn.Parameter) -> WeightMetadata:
    """Return the metadata of a weight, without a reference to the weight."""
    attributes = {name: value for name, value in vars(weight).items() if name != _PARAMETER_FLAG}
    if attributes:  # a fake tensor keeps its state there as well
        of_torch = vars(weight.detach())
        attributes = {name: value for name, value in attributes.items() if name not in of_torch}
    hooks, after = weight._backward_hooks, weight._post_accumulate_grad_hooks
    return WeightMetadata(attributes, tuple((hooks or {}).values()), tuple((after or {}).values()))


def metadata_by_name(module: nn.Module) -> dict[str, WeightMetadata]:
    """Return the metadata of a module's weights by name; weights without metadata are left out."""
    by_name = {name: weight_metadata(weight) for name, weight in module.named_parameters()}
    return {name: marks for name, marks in by_name.items() if marks}


def restore_metadata(module: nn.Module, marks: dict[str, WeightMetadata]) -> None:
    """Copy the metadata in `marks` to the module's new weights of the same names."""
    for name, of_weight in marks.items():
        of_weight.copy_to(module.get_parameter(name))
