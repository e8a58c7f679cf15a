"""Methods of torch, and of Python's threads, that are wrapped while the memory ledger is tracking.

If torch moves one of these methods, the ledger continues without wrapping it: resizes by FSDP, the kind of
the tensors that FSDP gathers and scatters, and the shapes in DTensor's sharding propagation are then tracked
less exactly.
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

from .attribute_patches import AttributePatches
from .private_api import PrivateApi

_PROPAGATION = "torch.distributed.tensor._sharding_prop"
_PROPAGATE = "_propagate_tensor_meta_non_cached"
_FSDP_GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_FSDP_COMM_METHODS = ("unshard", "wait_for_unshard", "post_backward")

PRIVATE_APIS = (
    PrivateApi("torch:UntypedStorage.resize_", "memory under fsdp is overstated"),
    PrivateApi(f"{_PROPAGATION}:ShardingPropagator.{_PROPAGATE}", "memory under tensor is overstated"),
    *(
        PrivateApi(
            f"{_FSDP_GROUP}:FSDPParamGroup.{name}",
            "tensors that fsdp gathers and scatters count as activations",
        )
        for name in _FSDP_COMM_METHODS
    ),
)


class LedgerPatches(AttributePatches):
    """Patches that wrap methods while the memory ledger is tracking."""

    def __init__(
        self,
        resized: Callable[[torch.UntypedStorage], None],
        paused: Callable[[], AbstractContextManager[None]],
        phase: Callable[[str], AbstractContextManager[None]],
        *,
        to_host: Callable[[Tensor], Callable[[], Tensor]],
        worker_context: Callable[[], Callable[[], AbstractContextManager[None]] | None],
    ) -> None:
        super().__init__()
        self._on_resize = resized
        self._paused = paused
        self._phase = phase
        self._to_host = to_host
        self._worker_context = worker_context

    def apply(self) -> None:
        self._patch_resize()
        self._patch_frombuffer()
        self._patch_save_on_cpu()
        self._patch_threads()
        self._patch_sharding_propagation()
        self._patch_fsdp()

    def _patch_resize(self) -> None:
        """Report resized storages: FSDP resizes them outside any operation, to free and restore weights."""
        resize = torch.UntypedStorage.resize_
        resized = self._on_resize

        def followed_resize(storage: torch.UntypedStorage, num_bytes: int) -> Any:
            out = resize(storage, num_bytes)
            resized(storage)
            return out

        self.patch(torch.UntypedStorage, "resize_", followed_resize)

    def _patch_frombuffer(self) -> None:
        """Report tensors of torch.frombuffer to the dispatch modes, because no operation creates them."""
        frombuffer = torch.frombuffer

        def wrapper(*args: Any, **kwargs: Any) -> Tensor:
            tensor: Tensor = frombuffer(*args, **kwargs)
            torch.ops.aten.lift_fresh(tensor.detach())
            return tensor

        self.patch(torch, "frombuffer", wrapper)

    def _patch_save_on_cpu(self) -> None:
        """Replace the hooks of save_on_cpu: on a virtual device, which for torch is the CPU, they would save
        the original tensors, or copies on the same device."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self._to_host, lambda bring_back: bring_back())
        self.patch(torch.autograd.graph.save_on_cpu, "__enter__", lambda _: hooks.__enter__())

    def _patch_threads(self) -> None:
        """Track threads and pool jobs that start from now on, because modes belong to a
        thread."""
        start, submit = threading.Thread.start, ThreadPoolExecutor.submit
        helping, paused = self._worker_context, self._paused

        def followed_start(thread: threading.Thread) -> None:
            context, run = helping(), thread.run
            if context is None:
                return start(thread)

            def followed_run() -> None:
                # The wrapper refers to the thread, so leaving it there would form a reference cycle.
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

            with paused():  # the pool's threads are tracked job by job, or they would stay slow
                return submit(pool, followed_job, *args, **kw)

        self.patch(threading.Thread, "start", followed_start)
        self.patch(ThreadPoolExecutor, "submit", followed_submit)

    def _patch_sharding_propagation(self) -> None:
        """Exclude DTensor's sharding propagation from tracking: its tensors have the global shape but hold no
        memory."""
        # Not imported here, so that a run without DTensor does not pay for it.
        module = sys.modules.get(_PROPAGATION)
        propagate = getattr(module.ShardingPropagator, _PROPAGATE, None) if module else None
        if module is None or propagate is None:
            return
        paused = self._paused

        def unfollowed(*args: Any, **kwargs: Any) -> Any:
            with paused():
                return propagate(*args, **kwargs)

        self.patch(module.ShardingPropagator, _PROPAGATE, unfollowed)

    def _patch_fsdp(self) -> None:
        """Count FSDP's gathered weights, and gradients that are about to be scattered, as communication."""
        group = getattr(sys.modules.get(_FSDP_GROUP), "FSDPParamGroup", None)
        for name in _FSDP_COMM_METHODS:
            move = getattr(group, name, None)
            if group is not None and move is not None:
                self.patch(group, name, self._as_communication(move))

    def _as_communication(self, move: Callable[..., Any]) -> Callable[..., Any]:
        def named(*args: Any, **kwargs: Any) -> Any:
            with self._phase("communication"):
                return move(*args, **kwargs)

        return named
