"""Access to a DTensor's local tensor on this rank, without autograd and without importing DTensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .private_api import PrivateApi

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def _local_tensor_annotation() -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor.__annotations__["_local_tensor"]


PRIVATE_APIS = (
    PrivateApi(
        "the _local_tensor of a DTensor",
        "memory under fsdp, tensor and hybrid is wrong",
        lookup=_local_tensor_annotation,
    ),
)


def is_dtensor(tensor: Any) -> TypeIs[DTensor]:
    return hasattr(tensor, "_local_tensor")


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's local tensor of a DTensor; return any other tensor unchanged."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local
