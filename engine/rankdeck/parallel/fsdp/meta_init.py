"""A model that no device has to hold as a whole: rank 0 builds it on the host, and all other ranks build only
its shapes.

    rank 0        model_fn()              real weights, from the seed, in host memory
    other ranks   model_fn() on "meta"    shapes without bytes
    all ranks     block by block          allocate on the device, get rank 0's values, shard if configured

Every rank starts from exactly the weights that a single device would have, and only rank 0's host ever holds
more than one block in addition to its slices: a filled tensor is released as soon as the last module that
uses it has received it. A user's factory that cannot run on "meta" (because it reads a checkpoint or a
tensor's value) builds real tensors on every rank; rank 0's weights still replace those of all other ranks.
Read blocks.py next.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from rankdeck.parallel.collectives.broadcast import broadcast_from_rank_0
from rankdeck.parallel.pytree import fp64_dtype
from rankdeck.torch_compat.modules import own_tensors
from rankdeck.torch_compat.weight_metadata import metadata_by_name, weight_metadata


class MetaInitModel:
    """A model whose parts are materialized one by one, and whose tensors keep their names."""

    def __init__(
        self,
        model_fn: Callable[[], nn.Module],
        *,
        rank: int,
        device: torch.device,
        dtype: torch.dtype | None,
        build_on_meta: Callable[[Callable[[], nn.Module]], nn.Module],
    ) -> None:
        """Build the model with real weights on rank 0; all other ranks call `build_on_meta`.

        `dtype` is the dtype for floating-point weights; if it is None, each weight keeps its own dtype.
        """
        self.module = (model_fn() if rank == 0 else build_on_meta(model_fn)).train()
        self._device = device
        self._dtype = dtype
        self._materialized_modules: set[nn.Module] = set()
        self._materialized_tensors: dict[int, Tensor] = {}
        # By id: references to the old tensors would keep the whole model in host memory.
        self._num_uses_left = Counter(id(old) for _, _, old in self._iter_tensors(self.module))

    def materialize(self, submodule: nn.Module) -> None:
        """Put the weights and buffers of `submodule` on the device, with rank 0's values. All ranks call
        this.

        Modules that are already materialized stay as they are. A tied weight stays tied.
        """
        owners = list(self._iter_tensors(submodule))
        fresh = {id(old): old for _, _, old in owners if id(old) not in self._materialized_tensors}
        self._materialized_tensors |= {key: self._copy(old) for key, old in fresh.items()}
        broadcast_from_rank_0(self._materialized_tensors[key] for key in fresh)
        for module, name, old in owners:
            setattr(module, name, self._materialized_tensors[id(old)])
            self._num_uses_left[id(old)] -= 1
            if not self._num_uses_left[id(old)]:
                del self._materialized_tensors[id(old)]
        self._materialized_modules.update(submodule.modules())

    def _iter_tensors(self, submodule: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
        for module in submodule.modules():
            if module not in self._materialized_modules:
                for name, tensor in [item for tensors in own_tensors(module) for item in tensors.items()]:
                    if tensor is not None:
                        yield module, name, tensor

    def _copy(self, old: Tensor) -> Tensor:
        dtype = fp64_dtype(old.dtype) if self._dtype is torch.float64 else old.dtype
        new = torch.empty_like(old, device=self._device, dtype=dtype, requires_grad=False)
        if not old.is_meta:
            new.copy_(old.detach())
        if not isinstance(old, nn.Parameter):
            return new
        weight = nn.Parameter(new, requires_grad=old.requires_grad)
        weight_metadata(old).copy_to(weight)
        return weight


def build_on_meta(model_fn: Callable[[], nn.Module]) -> nn.Module:
    """Build the model on the meta device, or with real tensors if its factory needs real tensors."""
    with contextlib.suppress(Exception):  # a factory that fails on "meta" runs for real
        with torch.device("meta"):
            model = model_fn()
        if not _has_hidden_meta_tensors(model):
            return model
    return model_fn()


def _has_hidden_meta_tensors(model: nn.Module) -> bool:
    """Check whether a module or weight references a meta tensor that is neither a parameter nor a buffer.

    Nothing would fill such a tensor. A gradient hook may hide a meta tensor, so the result is true if there
    is any hook.
    """
    marks = metadata_by_name(model).values()
    attribute_dicts = [vars(module) for module in model.modules()] + [
        of_weight.attributes for of_weight in marks
    ]
    return any(of_weight.has_hooks for of_weight in marks) or any(
        isinstance(value, Tensor) and value.is_meta for values in attribute_dicts for value in values.values()
    )
