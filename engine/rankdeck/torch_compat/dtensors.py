"""The part of a DTensor that this rank holds, without autograd and without importing DTensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rankdeck.torch_compat.places import Private


def _a_local_tensor() -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor.__annotations__["_local_tensor"]


PLACES = (
    Private("the _local_tensor of a DTensor", "fsdp, tensor and hybrid are miscounted", look=_a_local_tensor),
)


def is_dtensor(tensor: Tensor) -> bool:
    return hasattr(tensor, "_local_tensor")


def local_part(tensor: Tensor) -> Tensor:
    """The tensor that this rank holds of a DTensor; any other tensor itself."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local
