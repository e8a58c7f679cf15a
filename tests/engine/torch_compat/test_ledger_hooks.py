"""What the ledger wraps of torch is seen while it follows, and is left as it was."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from rankdeck.memory.ledger import Ledger

_PROPAGATE = "_propagate_tensor_meta_non_cached"


def test_a_resized_storage_is_tracked() -> None:
    ledger = Ledger(1)
    with ledger.tracking():
        x = torch.zeros(100)
        x.untyped_storage().resize_(0)
        assert ledger.live_bytes == 0
        x.untyped_storage().resize_(800)
    assert ledger.live_bytes == 800


def test_an_untracked_resize_is_found_by_the_next_sample() -> None:
    ledger = Ledger(1)
    with ledger.tracking():
        x = torch.zeros(100)
    x.untyped_storage().resize_(40)
    with ledger.tracking():
        assert ledger.live_bytes == 40


def test_patches_are_restored() -> None:
    resize, propagate = torch.UntypedStorage.resize_, getattr(ShardingPropagator, _PROPAGATE)
    with Ledger(1).tracking():
        assert torch.UntypedStorage.resize_ is not resize
        assert getattr(ShardingPropagator, _PROPAGATE) is not propagate
    assert torch.UntypedStorage.resize_ is resize
    assert getattr(ShardingPropagator, _PROPAGATE) is propagate
    assert (
        "resize_" not in torch.UntypedStorage.__dict__ or torch.UntypedStorage.__dict__["resize_"] is resize
    )


def test_dtensor_shape_propagation_counts_no_memory() -> None:
    ledger = Ledger(1)
    sizes: list[int] = []

    def work_out(*_: object) -> None:
        shape_only = torch.zeros(1000)
        sizes.append(ledger.live_bytes)
        del shape_only

    original = getattr(ShardingPropagator, _PROPAGATE)
    setattr(ShardingPropagator, _PROPAGATE, work_out)
    try:
        with ledger.tracking():
            getattr(ShardingPropagator, _PROPAGATE)(None)
    finally:
        setattr(ShardingPropagator, _PROPAGATE, original)
    assert sizes == [0]


def test_fsdp_gathers_and_scatters_count_as_communication() -> None:
    ledger = Ledger(1)
    tensors: list[torch.Tensor] = []
    moves = {name: getattr(FSDPParamGroup, name) for name in ("unshard", "wait_for_unshard", "post_backward")}
    for name in moves:
        setattr(FSDPParamGroup, name, lambda _: tensors.append(torch.zeros(10)))
    try:
        with ledger.tracking():
            for name in moves:
                getattr(FSDPParamGroup, name)(None)
    finally:
        for name, move in moves.items():
            setattr(FSDPParamGroup, name, move)
    assert ledger.devices()[0].live_by_kind["communication"] == 3 * 40


@pytest.mark.parametrize("pin_memory", [False, True])
def test_tensors_saved_on_the_host_do_not_count_on_the_device(pin_memory: bool) -> None:
    ledger = Ledger(2)
    held_bytes = []
    with ledger.tracking(), ledger.on_device(1):
        x = torch.linspace(0, 1, 1000, requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=pin_memory):
            y = (x * 2).sin()
        held_bytes.append(ledger.live_bytes)
        with ledger.on_device(0):
            y.backward(torch.ones_like(y))
        del y
        held_bytes.append(ledger.live_bytes)
    # x and y; then x and its gradient. What the sine needs comes back to the device that it left.
    assert held_bytes == [8000, 8000]
    assert ledger.devices()[0].peak_bytes == 0 and ledger.device_of(x) == 1
    assert x.grad is not None and torch.allclose(x.grad, 2 * torch.cos(2 * x.detach()))


def test_user_threads_are_tracked_on_the_submitting_device() -> None:
    ledger = Ledger(2)
    tensors: list[torch.Tensor] = []
    with ThreadPoolExecutor(1) as pool:

        def make() -> bool:
            tensors.append(torch.ones(100))
            return ledger.is_tracking

        def start_thread() -> None:
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()

        with ledger.tracking(), ledger.on_device(1):
            start_thread()
            assert pool.submit(make).result()
            assert [device.live_bytes for device in ledger.devices()] == [0, 800]
            with ledger.paused():
                start_thread()
                assert not pool.submit(make).result()
        start_thread()
        assert not pool.submit(make).result(), "the pool's thread went on following"
        with ledger.tracking():
            assert pool.submit(make).result()
    assert [device.live_bytes for device in ledger.devices()] == [400, 800]
    tensors.clear()
    assert ledger.live_bytes == 0
