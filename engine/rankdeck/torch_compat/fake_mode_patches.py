"""Patches to torch that let a strategy build its model and train it on fake tensors.

    module apply        Module.to and .double store new tensors, because fake tensors cannot be swapped
    init                functions of torch.nn.init do nothing, because there is no memory to fill
    device mesh         DeviceMesh computes this rank's coordinate on real tensors, not on fake ones
    object broadcasts   broadcast_object_list keeps this rank's objects: planned ranks have the same objects
    empty chunks        ranks that get no part of a weight share one tensor without elements
    isend               in a rehearsal, a send's handle keeps the sent tensor alive, as gloo's handle does
    deepcopy            a copy has the same shape and fake mode; no memory is read
    file readers        tensors that safetensors or numpy read become fake tensors of the same shape

A function that torch has moved is not patched; a plan reports the resulting failure in one line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as meshes
import torch.distributed.distributed_c10d as c10d
import torch.distributed.fsdp._fully_shard._fsdp_param as sharding
from torch import Tensor, nn

from rankdeck.torch_compat.attribute_patches import AttributePatches
from rankdeck.torch_compat.dispatch import without_modes
from rankdeck.torch_compat.fake_tensors import FakeTensor, active_fake_mode
from rankdeck.torch_compat.modules import own_tensors
from rankdeck.torch_compat.private_api import PrivateApi

_MESH_METHODS = ("__init__", "__getitem__", "_concatenate", "_flatten", "_unflatten")
_NO_MESHES = "plans of fsdp, tensor and hybrid fail"
PRIVATE_APIS = (
    *(PrivateApi(f"torch.distributed.device_mesh:DeviceMesh.{name}", _NO_MESHES) for name in _MESH_METHODS),
    PrivateApi(
        "torch.distributed:broadcast_object_list", "plans for several ranks fail", parameters=("object_list",)
    ),
    PrivateApi(
        "torch.distributed.distributed_c10d:isend",
        "plans of pipelines understate memory",
        parameters=("tensor",),
    ),
    PrivateApi(
        "torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty",
        "plans of fsdp on hundreds of devices take longer",
        parameters=("tensor", "num_chunks", "dim"),
    ),
    PrivateApi("torch.nn.init:kaiming_uniform_", "plans take longer", parameters=("tensor",)),
    PrivateApi("torch:asarray", "plans of models that load safetensors files fail"),
)


def patch_module_apply(replaced: AttributePatches) -> None:
    """Make Module._apply replace tensors instead of swapping their contents; tied tensors stay tied."""

    def apply(self: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        changed: dict[Tensor, Tensor] = {}
        for module in self.modules() if recurse else (self,):
            for tensors in own_tensors(module):
                for name, tensor in tensors.items():
                    if tensor is None:
                        continue
                    if tensor not in changed:
                        changed[tensor] = _apply_change(tensor, change)
                    tensors[name] = changed[tensor]
        return self

    replaced.patch(nn.Module, "_apply", apply)


def _apply_change(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.no_grad():
        new = change(tensor)
    if new.dtype == tensor.dtype and new.device == tensor.device:
        return tensor
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new


def patch_init(replaced: AttributePatches) -> None:
    """Make torch.nn.init's functions return their argument unchanged."""

    def as_it_is(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        return tensor

    # A copy, because patching changes the table.
    for name, function in vars(nn.init).copy().items():
        if name.endswith("_") and not name.startswith("_") and callable(function):
            replaced.patch(nn.init, name, as_it_is)


def patch_deepcopy(replaced: AttributePatches) -> None:
    """Make copy.deepcopy of a fake tensor return a new fake tensor of the same mode."""

    def copied(self: FakeTensor, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            # torch's own deepcopy refuses these too.
            if not self.is_leaf:
                raise RuntimeError("Only graph leaves support deepcopy.")
            clone = self.detach().clone().requires_grad_(self.requires_grad)
            memo[id(self)] = nn.Parameter(clone, self.requires_grad) if _is_weight(self) else clone
        copy: Tensor = memo[id(self)]
        return copy

    replaced.patch(FakeTensor, "__deepcopy__", copied)


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def patch_file_readers(replaced: AttributePatches) -> None:
    """Make functions that create tensors from existing memory return fake tensors in fake mode."""

    def as_shape(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            mode = active_fake_mode()
            if mode is None:
                return function(*args, **kwargs)
            if args and isinstance(args[0], torch.UntypedStorage):  # from safetensors
                return torch.empty(args[0].nbytes(), dtype=torch.uint8)
            tensor = function(*args, **kwargs)
            return tensor if isinstance(tensor, FakeTensor) else mode.from_tensor(tensor)

        return wrapper

    for name in ("asarray", "frombuffer", "from_numpy"):
        replaced.patch(torch, name, as_shape(getattr(torch, name)))


def replace_real_tensors(model: nn.Module) -> nn.Module:
    """Replace a model's real tensors, created by another thread outside fake mode, with fake ones."""
    mode = active_fake_mode()
    for module in model.modules() if mode is not None else ():
        for tensors in own_tensors(module):
            for name, tensor in tensors.items():
                if tensor is not None and not isinstance(tensor, FakeTensor):
                    tensors[name] = mode.from_tensor(tensor)
    return model


def patch_device_mesh(replaced: AttributePatches) -> None:
    """Make DeviceMesh compute its coordinates on real tensors."""
    for name in _MESH_METHODS:
        original = inspect.getattr_static(meshes.DeviceMesh, name, None)
        if isinstance(original, staticmethod):
            replaced.patch(meshes.DeviceMesh, name, staticmethod(with_real_tensors(original.__func__)))
        elif original is not None:
            replaced.patch(meshes.DeviceMesh, name, with_real_tensors(original))


def with_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it computes on real tensors, even inside fake mode."""

    def computed(*args: Any, **kwargs: Any) -> Any:
        with without_modes():
            return function(*args, **kwargs)

    return computed


def patch_empty_chunks(replaced: AttributePatches) -> None:
    """Make fully_shard use one empty tensor as the chunk of every rank that gets no part of a weight."""

    def chunks(tensor: Tensor, num_chunks: int, dim: int) -> list[Tensor]:
        pieces = list(torch.chunk(tensor, num_chunks, dim=dim))
        num_missing = num_chunks - len(pieces)
        return pieces + [pieces[0].new_empty(0)] * num_missing if num_missing else pieces

    if hasattr(sharding, "_chunk_with_empty"):
        replaced.patch(sharding, "_chunk_with_empty", chunks)


def patch_broadcast_objects(replaced: AttributePatches) -> None:
    """Make broadcast_object_list leave each rank's objects as they are."""

    def keep_objects(objects: list[Any], *_: Any, **__: Any) -> None:
        return None

    replaced.patch(dist, "broadcast_object_list", keep_objects)


def patch_isend(replaced: AttributePatches) -> None:
    """Make a send's handle keep the sent tensor alive, as gloo's handle does; NCCL's does not."""
    isend = c10d.isend

    def holding(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        work = isend(tensor, *args, **kwargs)
        return None if work is None else _SendHandle(work, tensor)

    # A P2POp checks that its operation is the module's own isend or irecv, so both names are replaced.
    replaced.patch(c10d, "isend", holding)
    replaced.patch(dist, "isend", holding)


class _SendHandle:
    """Handle of a send that finishes at once; the handle holds the sent tensor."""

    def __init__(self, work: Any, tensor: Tensor) -> None:
        self._work = work
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
