"""Methods of torch, and of Python's threads, that are wrapped while the memory ledger follows.

If torch moves one of them, the ledger goes on without it: resizes by FSDP, the kind of what it gathers and
scatters, and shapes of DTensor's sharding propagation are then less exact.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .places import Private
from .replaced import Replaced

_PROPAGATION = "torch.distributed.tensor._sharding_prop"
_PROPAGATE = "_propagate_tensor_meta_non_cached"
_FSDP_GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_FSDP_MOVES = ("unshard", "wait_for_unshard", "post_backward")

PLACES = (
    Private("torch:UntypedStorage.resize_", "memory of fsdp is overstated"),
    Private(f"{_PROPAGATION}:ShardingPropagator.{_PROPAGATE}", "memory of tensor is overstated"),
    *(
        Private(f"{_FSDP_GROUP}:FSDPParamGroup.{name}", "fsdp's communication is shown as activations")
        for name in _FSDP_MOVES
    ),
)


class Patches(Replaced):
    """Methods of torch that are wrapped while somebody follows."""

    def __init__(
        self,
        resized: Callable[[torch.UntypedStorage], None],
        paused: Callable[[], AbstractContextManager[None]],
        phase: Callable[[str], AbstractContextManager[None]],
        *,
        to_host: Callable[[Tensor], Callable[[], Tensor]],
        helping: Callable[[], Callable[[], AbstractContextManager[None]] | None],
    ) -> None:
        super().__init__()
        self._resized = resized
        self._paused = paused
        self._phase = phase
        self._to_host = to_host
        self._helping = helping

    def put_on(self) -> None:
        self._follow_resize()
        self._show_buffers()
        self._keep_saved_on_host()
        self._follow_threads()
        self._pause_sharding_propagation()
        self._name_what_fsdp_moves()

    def _follow_resize(self) -> None:
        """FSDP frees and gets back unsharded parameters by resizing their storage, outside any operation."""
        resize = torch.UntypedStorage.resize_
        resized = self._resized

        def followed_resize(storage: torch.UntypedStorage, num_bytes: int) -> Any:
            out = resize(storage, num_bytes)
            resized(storage)
            return out

        self.put(torch.UntypedStorage, "resize_", followed_resize)

    def _show_buffers(self) -> None:
        """A tensor over a person's buffer is made by no operation."""
        frombuffer = torch.frombuffer

        def shown(*args: Any, **kwargs: Any) -> Tensor:
            made: Tensor = frombuffer(*args, **kwargs)
            torch.ops.aten.lift_fresh(made.detach())
            return made

        self.put(torch, "frombuffer", shown)

    def _keep_saved_on_host(self) -> None:
        """save_on_cpu, where the device is a CPU too, saves the tensors themselves, or copies beside them."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self._to_host, lambda bring_back: bring_back())
        self.put(torch.autograd.graph.save_on_cpu, "__enter__", lambda _: hooks.__enter__())

    def _follow_threads(self) -> None:
        """Threads that are started and given work while somebody follows: modes are each thread's own."""
        start, submit = threading.Thread.start, ThreadPoolExecutor.submit
        helping, paused = self._helping, self._paused

        def followed_start(thread: threading.Thread) -> None:
            context, run = helping(), thread.run
            if context is None:
                return start(thread)

            def followed_run() -> None:
                del thread.run
                with context():
                    run()

            thread.run = followed_run  # type: ignore[method-assign]
            return start(thread)

        def followed_submit(
            pool: ThreadPoolExecutor, job: Callable[..., Any], /, *args: Any, **kw: Any
        ) -> Any:
            context = helping()
            if context is None:
                return submit(pool, job, *args, **kw)

            def followed_job(*args: Any, **kw: Any) -> Any:
                with context():
                    return job(*args, **kw)

            with paused():  # a thread that the pool starts is followed job by job
                return submit(pool, followed_job, *args, **kw)

        self.put(threading.Thread, "start", followed_start)
        self.put(ThreadPoolExecutor, "submit", followed_submit)

    def _pause_sharding_propagation(self) -> None:
        """DTensor works out shardings on tensors of the global shape, which hold no memory."""
        module = sys.modules.get(_PROPAGATION)
        propagate = getattr(module.ShardingPropagator, _PROPAGATE, None) if module else None
        if module is None or propagate is None:
            return
        paused = self._paused

        def unfollowed(*args: Any, **kwargs: Any) -> Any:
            with paused():
                return propagate(*args, **kwargs)

        self.put(module.ShardingPropagator, _PROPAGATE, unfollowed)

    def _name_what_fsdp_moves(self) -> None:
        """Weights that FSDP gathers, and gradients on their way to slices, are communication."""
        group = getattr(sys.modules.get(_FSDP_GROUP), "FSDPParamGroup", None)
        for name in _FSDP_MOVES:
            move = getattr(group, name, None)
            if group is not None and move is not None:
                self.put(group, name, self._as_communication(move))

    def _as_communication(self, move: Callable[..., Any]) -> Callable[..., Any]:
        def named(*args: Any, **kwargs: Any) -> Any:
            with self._phase("communication"):
                return move(*args, **kwargs)

        return named
