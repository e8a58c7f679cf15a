"""What crosses between virtual devices is a copy, is counted, and carries its gradient back."""

from __future__ import annotations

import torch

from rankdeck.memory.ledger import Ledger
from rankdeck.memory.virtual import VirtualDevices


def test_a_transfer_copies_and_returns_the_gradient() -> None:
    ledger = Ledger(2)
    devices = VirtualDevices(2, ledger)
    with ledger.tracking():
        x = torch.ones(100, requires_grad=True)
        moved = devices.transfer(x, 0, 1)
        assert (ledger.device_of(x), ledger.device_of(moved)) == (0, 1)
        (moved * 3).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((100,), 3.0))
    assert ledger.device_of(x.grad) == 0
    assert devices.moved_bytes == {(0, 1): 400, (1, 0): 400}


def test_an_untracked_gradient_is_on_its_weights_device() -> None:
    ledger = Ledger(2)
    with ledger.tracking(), ledger.on_device(1), ledger.phase("parameters"):
        layer = torch.nn.Linear(100, 1, bias=False)
    ledger.watch(layer, torch.optim.SGD(layer.parameters()))
    layer(torch.ones(100)).backward()
    with ledger.tracking():
        by_device = [device.live_by_kind["gradients"] for device in ledger.devices()]
    assert by_device == [0, 400]


def test_transfers_are_counted_without_a_ledger() -> None:
    devices = VirtualDevices(2)
    x = torch.ones(10)
    with devices.ledger.on_device(1), devices.ledger.phase("gathered"), devices.ledger.paused():
        moved = devices.transfer(x, 0, 1)
    assert torch.equal(moved, x) and moved.data_ptr() != x.data_ptr()
    assert devices.transfer(x, 1, 1) is x
    assert devices.copy(x, None, 1).data_ptr() != x.data_ptr()
    assert devices.moved_bytes == {(0, 1): 40}


def test_only_the_named_phase_ends_early() -> None:
    ledger = Ledger(1)
    devices = VirtualDevices(1, ledger)
    tensors = []
    with ledger.tracking(), devices.ledger.phase("gathered"):
        ledger.end_phase("inputs")
        tensors.append(torch.zeros(1))
        ledger.end_phase("gathered")
        tensors.append(torch.zeros(2))
    by_kind = ledger.devices()[0].live_by_kind
    assert (by_kind["gathered"], by_kind["activations"]) == (4, 8)
