"""What torch does differently where a strategy builds and trains on fake tensors.

    weights in place     Module.to and .double swap tensors, which fake ones refuse: they are replaced
    no initial values    torch.nn.init fills what has no memory: left out
    meshes for real      DeviceMesh looks for this rank's place in a tensor of numbers: computed for real
    one rank's objects   broadcast_object_list keeps what this rank has: planned ranks have the same
    one empty slice      ranks that get nothing of a weight share one tensor of no elements
    sends that hold      in a rehearsal, as gloo does, a handle of a send keeps its tensor
    copies               deepcopy reads memory and would copy the fake mode too: a copy is made of shapes
    files                what safetensors or numpy read is a tensor of the same shape

A place that torch has moved is left alone; what then fails is one line of a plan.
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
        "torch.distributed:broadcast_object_list", "plans over ranks fail", parameters=("object_list",)
    ),
    PrivateApi(
        "torch.distributed.distributed_c10d:isend", "plans of pipelines are too small", parameters=("tensor",)
    ),
    PrivateApi(
        "torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty",
        "plans of fsdp on hundreds of devices take long",
        parameters=("tensor", "num_chunks", "dim"),
    ),
    PrivateApi("torch.nn.init:kaiming_uniform_", "plans take longer", parameters=("tensor",)),
    PrivateApi("torch:asarray", "plans of models that read safetensors fail"),
)


def patch_module_apply(replaced: AttributePatches) -> None:
    """Module._apply that puts new tensors into the modules; a tied one stays tied."""

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
    """torch.nn.init's functions give back what they are given."""

    def as_it_is(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        return tensor

    for name, function in vars(nn.init).copy().items():
        if name.endswith("_") and not name.startswith("_") and callable(function):
            replaced.patch(nn.init, name, as_it_is)


def patch_deepcopy(replaced: AttributePatches) -> None:
    """copy.deepcopy of a fake tensor makes another of the same mode."""

    def copied(self: FakeTensor, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            if not self.is_leaf:
                raise RuntimeError("Only leaves of the graph support deepcopy.")
            made = self.detach().clone().requires_grad_(self.requires_grad)
            memo[id(self)] = nn.Parameter(made, self.requires_grad) if _is_weight(self) else made
        copy: Tensor = memo[id(self)]
        return copy

    replaced.patch(FakeTensor, "__deepcopy__", copied)


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def patch_file_readers(replaced: AttributePatches) -> None:
    """Functions that make tensors of memory that is there give fake ones in fake mode."""

    def as_shape(function: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            mode = active_fake_mode()
            if mode is None:
                return function(*args, **kwargs)
            if args and isinstance(args[0], torch.UntypedStorage):  # safetensors read it
                return torch.empty(args[0].nbytes(), dtype=torch.uint8)
            tensor = function(*args, **kwargs)
            return tensor if isinstance(tensor, FakeTensor) else mode.from_tensor(tensor)

        return made

    for name in ("asarray", "frombuffer", "from_numpy"):
        replaced.patch(torch, name, as_shape(getattr(torch, name)))


def replace_real_tensors(model: nn.Module) -> nn.Module:
    """The model with fake tensors in place of those that a thread of its own made, where no mode is."""
    mode = active_fake_mode()
    for module in model.modules() if mode is not None else ():
        for tensors in own_tensors(module):
            for name, tensor in tensors.items():
                if tensor is not None and not isinstance(tensor, FakeTensor):
                    tensors[name] = mode.from_tensor(tensor)
    return model


def patch_device_mesh(replaced: AttributePatches) -> None:
    """DeviceMesh computes its places on real tensors."""
    for name in _MESH_METHODS:
        original = inspect.getattr_static(meshes.DeviceMesh, name, None)
        if isinstance(original, staticmethod):
            replaced.patch(meshes.DeviceMesh, name, staticmethod(with_real_tensors(original.__func__)))
        elif original is not None:
            replaced.patch(meshes.DeviceMesh, name, with_real_tensors(original))


def with_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, on real tensors also inside fake mode."""

    def computed(*args: Any, **kwargs: Any) -> Any:
        with without_modes():
            return function(*args, **kwargs)

    return computed


def patch_empty_chunks(replaced: AttributePatches) -> None:
    """fully_shard makes an empty tensor for every rank that gets nothing of a weight: one is enough."""

    def chunks(tensor: Tensor, num_chunks: int, dim: int) -> list[Tensor]:
        made = list(torch.chunk(tensor, num_chunks, dim=dim))
        num_missing = num_chunks - len(made)
        return made + [made[0].new_empty(0)] * num_missing if num_missing else made

    if hasattr(sharding, "_chunk_with_empty"):
        replaced.patch(sharding, "_chunk_with_empty", chunks)


def patch_broadcast_objects(replaced: AttributePatches) -> None:
    """broadcast_object_list leaves every rank what it has."""

    def kept(objects: list[Any], *_: Any, **__: Any) -> None:
        return None

    replaced.patch(dist, "broadcast_object_list", kept)


def patch_isend(replaced: AttributePatches) -> None:
    """gloo's handle of a send keeps the tensor for as long as somebody keeps the handle; NCCL's lets go."""
    isend = c10d.isend

    def holding(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        work = isend(tensor, *args, **kwargs)
        return None if work is None else _SendHandle(work, tensor)

    # A P2POp asks whether it is one of the module's own functions.
    replaced.patch(c10d, "isend", holding)
    replaced.patch(dist, "isend", holding)


class _SendHandle:
    """A send that is done at once, with its tensor."""

    def __init__(self, work: Any, tensor: Tensor) -> None:
        self._work = work
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
