"""The places where torch itself needs a hand when it computes on fake tensors, each with a test of its own.

    weights in place     Module.to and .double swap tensors, which fake ones refuse: they are replaced
    no initial values    torch.nn.init fills what has no memory: left out
    meshes for real      DeviceMesh looks for this rank's place in a tensor of numbers: computed for real
    one rank's word      broadcast_object_list keeps what this rank says: planned ranks say the same
    sends that hold      in a rehearsal, as gloo does, a handle of a send keeps its tensor

What strategies ask for themselves they get from `PlannedBackend`: models with fake weights, and torch's DDP
without its first exchange, with buckets that stay and a hook that is done at once.

If torch moves one of them, `planned` leaves it alone and says so (in a note); what then fails is one line of
a plan, and ddp falls back to single's figures with a set of buckets (see pool.py). Read fake_pass.py first.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.futures import Future
from torch.utils._python_dispatch import TorchDispatchMode

from rankdeck.parallel.backend import Backend
from rankdeck.parallel.mesh import Mesh
from rankdeck.planner.shape_memo import ShapeMemo

if TYPE_CHECKING:
    from rankdeck.planner.work import WorkCounter

_MESH = ("__init__", "__getitem__", "_concatenate", "_flatten", "_unflatten")
_LOCAL_VALUE = torch.ops.aten._local_scalar_dense.default
_ASKS = (_LOCAL_VALUE, torch.ops.aten.allclose.default, torch.ops.aten.equal.default)
_MASKING = "transformers.masking_utils"
_SCALER = "torch.amp.grad_scaler"
_DEVICE = torch.ops.prim.device.default
_LSTM = torch.ops.aten.mkldnn_rnn_layer.default
_CHANGE_MORE = ("resize_", "resize_as_", "set_", "detach_")


class Replaced:
    """Attributes that are exchanged for a while, and put back."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        self._originals.append((owner, name, inspect.getattr_static(owner, name)))
        setattr(owner, name, value)

    def put_back(self) -> None:
        while self._originals:
            setattr(*self._originals.pop())


@contextlib.contextmanager
def planned(*, like_cuda: bool, initial_values: bool = False) -> Iterator[PlannedBackend]:
    """A context in which strategies build and train on fake tensors, as over NCCL or as over gloo.

    It gives what strategies are to ask for their parts. With `initial_values` real tensors do as well: then
    weights are filled.
    """
    replaced = Replaced()
    try:
        _weights_in_place(replaced)
        if not initial_values:
            _no_initial_values(replaced)
        _meshes_for_real(replaced)
        _one_ranks_word(replaced)
        if not like_cuda:
            _sends_hold(replaced)
        yield PlannedBackend(replaced)
    finally:
        replaced.put_back()


class Values(TorchDispatchMode):
    """Answers 1 to whoever asks a fake tensor for its value, except inside the model, and counts the work.

    The loop and torch's own machinery read losses, norms and votes, none of which decides over memory; two
    tensors are equal. A model that reads a value may compute something else then, so it gets the error that
    fake tensors raise, unless it asks whether a batch has no padding: it is planned to have none. The loss
    scaler, who asks whether gradients are infinite, is told 0: else no step is ever taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.modules_deep = 0
        self.counter: WorkCounter | None = None
        self.has_workspaces = False
        """Whether a kernel ran that keeps a workspace, for backward, whose size it alone knows."""
        self.unknown: dict[str, None] = {}
        """What was met that holds memory of a size which is not known without running it, in words."""
        self._only_writes: dict[Any, bool] = {}
        self._memo = ShapeMemo()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @contextlib.contextmanager
    def strict_inside_modules(self) -> Iterator[None]:
        """A context in which it is known whether a module's forward runs."""

        def enter(*_: Any) -> None:
            self.modules_deep += 1

        def leave(*_: Any) -> None:
            self.modules_deep -= 1

        handles = [
            nn.modules.module.register_module_forward_pre_hook(enter),
            nn.modules.module.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        if func in _ASKS and (not self.modules_deep or _asked_by(_MASKING)):
            is_number = func is _LOCAL_VALUE and args[0].is_floating_point()
            return float(not _asked_by(_SCALER)) if is_number else True
        if func.namespace == "_c10d_functional" and func.__name__ == "wait_tensor.default":
            return args[0]  # as it does; on shapes alone torch makes another tensor of it
        if func is _LSTM and torch.is_grad_enabled():
            self.has_workspaces = True
        only_writes = self._only_writes.get(func)
        if only_writes is None:
            only_writes = self._only_writes[func] = _only_writes(func)
        answer = _as_it_was if only_writes else self._memo
        out = answer(func, args, kwargs)
        if self.counter is not None:
            self.counter.add(func, args, kwargs, out)
        return out


def _asked_by(asker: str) -> bool:
    """Whether a module asks, rather than whoever called it: Hugging Face's masks, the loss scaler."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == asker:
            return True
        between = name == "torch" or name.startswith(("torch.", "rankdeck."))
        if not between or name.startswith("torch.optim"):  # which the scaler calls, and asks for itself
            return False
        frame = frame.f_back
    return False


def _as_it_was(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """What an operation returns that only changes values in place."""
    return args[0] if func._schema.returns else None


def _only_writes(func: Any) -> bool:
    """Whether an operation only changes values in place: there is nothing to do then, for half of all."""
    schema = func._schema
    name = func.__name__.partition(".")[0]
    if func.namespace != "aten" or torch.Tag.inplace_view in func.tags or not name.endswith("_"):
        return False
    if not schema.returns:
        return bool(name.startswith("_foreach_"))
    alias = schema.returns[0].alias_info
    writes = len(schema.returns) == 1 and alias is not None and bool(alias.is_write)
    return writes and name not in _CHANGE_MORE


def _weights_in_place(replaced: Replaced) -> None:
    """Module._apply that puts new tensors into the modules; a tied one stays tied."""

    def apply(self: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        changed: dict[Tensor, Tensor] = {}
        for module in self.modules() if recurse else (self,):
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is None:
                        continue
                    if tensor not in changed:
                        changed[tensor] = _changed(tensor, change)
                    tensors[name] = changed[tensor]  # type: ignore[assignment]  # of the same kind
        return self

    replaced.put(nn.Module, "_apply", apply)


def _changed(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.no_grad():
        new = change(tensor)
    if new.dtype == tensor.dtype and new.device == tensor.device:
        return tensor
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new


def _no_initial_values(replaced: Replaced) -> None:
    def as_it_is(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        return tensor

    for name, function in vars(nn.init).copy().items():
        if name.endswith("_") and not name.startswith("_") and callable(function):
            replaced.put(nn.init, name, as_it_is)


def _meshes_for_real(replaced: Replaced) -> None:
    import torch.distributed.device_mesh as meshes

    for name in _MESH:
        original = inspect.getattr_static(meshes.DeviceMesh, name, None)
        if isinstance(original, staticmethod):
            replaced.put(meshes.DeviceMesh, name, staticmethod(_for_real(original.__func__)))
        elif original is not None:
            replaced.put(meshes.DeviceMesh, name, _for_real(original))


def _for_real(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch.utils._python_dispatch import _disable_current_modes

    def computed(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return computed


def _one_ranks_word(replaced: Replaced) -> None:
    def said(objects: list[Any], *_: Any, **__: Any) -> None:
        return None

    replaced.put(dist, "broadcast_object_list", said)


def _sends_hold(replaced: Replaced) -> None:
    """gloo's handle of a send keeps the tensor for as long as somebody keeps the handle; NCCL's lets go."""
    import torch.distributed.distributed_c10d as c10d

    isend = c10d.isend

    def holding(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        work = isend(tensor, *args, **kwargs)
        return None if work is None else _Sending(work, tensor)

    # A P2POp asks whether it is one of the module's own functions.
    replaced.put(c10d, "isend", holding)
    replaced.put(dist, "isend", holding)


class _Sending:
    """A send that is done at once, with its tensor."""

    def __init__(self, work: Any, tensor: Tensor) -> None:
        self._work = work
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class PlannedBackend(Backend):
    """What strategies get on fake tensors."""

    def __init__(self, replaced: Replaced) -> None:
        self._replaced = replaced

    def model(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """Hugging Face's masks take fake tensors for a graph that is traced, and are never left out then."""
        model = model_fn()
        masking = sys.modules.get(_MASKING)
        if masking is not None and hasattr(masking, "is_tracing"):
            self._replaced.put(masking, "is_tracing", lambda tensor=None: False)
        return model

    def model_without_memory(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """A model on "meta" holds tensors that are not fake; a fake one costs as little."""
        return model_fn()

    def device_mesh(self, mesh: Mesh, device_type: str) -> DeviceMesh:
        made: DeviceMesh = _for_real(super().device_mesh)(mesh, device_type)
        return made

    def replicate(self, module: nn.Module, **options: Any) -> nn.parallel.DistributedDataParallel:
        return _PlannedDdp(module, **options)


class _PlannedDdp(nn.parallel.DistributedDataParallel):
    """torch's wrapper, with its buckets, whose all-reduce leaves them as they are."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, init_sync=False, **options)
        # Unannotated: torch compares a hook's annotations with classes of its own.
        super().register_comm_hook(None, lambda _, bucket: _done_at_once(bucket))
        kept: Any = _KeepsBuckets(self.reducer)
        self.reducer = kept

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Compression travels in tensors of its own, which the plan leaves out."""


class _KeepsBuckets:
    """The reducer, except that it does not order its buckets anew: that asks the other ranks."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return (lambda: False) if name == "_rebuild_buckets" else getattr(self._reducer, name)


def _done_at_once(bucket: Any) -> Future[Tensor]:
    done: Future[Tensor] = Future()
    done.set_result(bucket.buffer())
    return done
