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


def test_a_storage_that_is_resized_is_followed() -> None:
    ledger = Ledger(1)
    with ledger.following():
        x = torch.zeros(100)
        x.untyped_storage().resize_(0)
        assert ledger.live_bytes == 0
        x.untyped_storage().resize_(800)
    assert ledger.live_bytes == 800


def test_a_resize_while_nobody_followed_is_seen_by_the_next_sample() -> None:
    ledger = Ledger(1)
    with ledger.following():
        x = torch.zeros(100)
    x.untyped_storage().resize_(40)
    with ledger.following():
        assert ledger.live_bytes == 40


def test_what_was_wrapped_is_put_back() -> None:
    resize, propagate = torch.UntypedStorage.resize_, getattr(ShardingPropagator, _PROPAGATE)
    with Ledger(1).following():
        assert torch.UntypedStorage.resize_ is not resize
        assert getattr(ShardingPropagator, _PROPAGATE) is not propagate
    assert torch.UntypedStorage.resize_ is resize
    assert getattr(ShardingPropagator, _PROPAGATE) is propagate
    assert (
        "resize_" not in torch.UntypedStorage.__dict__ or torch.UntypedStorage.__dict__["resize_"] is resize
    )


def test_shapes_worked_out_by_dtensor_hold_no_memory() -> None:
    ledger = Ledger(1)
    made: list[int] = []

    def work_out(*_: object) -> None:
        shape_only = torch.zeros(1000)
        made.append(ledger.live_bytes)
        del shape_only

    original = getattr(ShardingPropagator, _PROPAGATE)
    setattr(ShardingPropagator, _PROPAGATE, work_out)
    try:
        with ledger.following():
            getattr(ShardingPropagator, _PROPAGATE)(None)
    finally:
        setattr(ShardingPropagator, _PROPAGATE, original)
    assert made == [0]


def test_what_fsdp_gathers_and_scatters_is_communication() -> None:
    ledger = Ledger(1)
    made: list[torch.Tensor] = []
    moves = {name: getattr(FSDPParamGroup, name) for name in ("unshard", "wait_for_unshard", "post_backward")}
    for name in moves:
        setattr(FSDPParamGroup, name, lambda _: made.append(torch.zeros(10)))
    try:
        with ledger.following():
            for name in moves:
                getattr(FSDPParamGroup, name)(None)
    finally:
        for name, move in moves.items():
            setattr(FSDPParamGroup, name, move)
    assert ledger.devices()[0].live_by_kind["communication"] == 3 * 40


@pytest.mark.parametrize("pin_memory", [False, True])
def test_what_is_saved_on_the_host_is_not_on_the_device(pin_memory: bool) -> None:
    ledger = Ledger(2)
    held_bytes = []
    with ledger.following(), ledger.on(1):
        x = torch.linspace(0, 1, 1000, requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=pin_memory):
            y = (x * 2).sin()
        held_bytes.append(ledger.live_bytes)
        with ledger.on(0):
            y.backward(torch.ones_like(y))
        del y
        held_bytes.append(ledger.live_bytes)
    # x and y; then x and its gradient. What the sine needs comes back to the device that it left.
    assert held_bytes == [8000, 8000]
    assert ledger.devices()[0].peak_bytes == 0 and ledger.device_of(x) == 1
    assert x.grad is not None and torch.allclose(x.grad, 2 * torch.cos(2 * x.detach()))


def test_threads_of_a_persons_own_are_followed_on_the_device_of_who_gives_them_work() -> None:
    ledger = Ledger(2)
    kept: list[torch.Tensor] = []
    with ThreadPoolExecutor(1) as pool:

        def make() -> bool:
            kept.append(torch.ones(100))
            return ledger.is_following

        def start_thread() -> None:
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()

        with ledger.following(), ledger.on(1):
            start_thread()
            assert pool.submit(make).result()
            assert [device.live_bytes for device in ledger.devices()] == [0, 800]
            with ledger.paused():
                start_thread()
                assert not pool.submit(make).result()
        start_thread()
        assert not pool.submit(make).result(), "the pool's thread went on following"
        with ledger.following():
            assert pool.submit(make).result()
    assert [device.live_bytes for device in ledger.devices()] == [400, 800]
    kept.clear()
    assert ledger.live_bytes == 0
