"""Memory of a GPU by kind: counted from tensors, and the rest of what is allocated."""

from __future__ import annotations

import pytest
import torch

from rankdeck.memory.torch_memory import (
    FIRST_READINGS,
    OwnerBytes,
    count_by_owner,
    read_gpu_bytes,
    reset_gpu_peaks,
    with_activations,
)
from tests.helpers import tiny_training as tiny


def _train_once(device: torch.device) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = tiny.TinyGPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(2, 8, dtype=torch.long, device=device)
    positions = model.place(torch.arange(8, device=device))
    (model.token(tokens) + positions).sum().backward()
    optimizer.step()
    return model, optimizer


def test_owners_are_counted_by_kind() -> None:
    device = torch.device("cpu")
    model, optimizer = _train_once(device)
    bytes_by_kind = count_by_owner(device, model, optimizer)
    assert bytes_by_kind["parameters"] == sum(p.numel() * 4 for p in model.parameters())
    with_gradient = [p for p in model.parameters() if p.grad is not None]
    assert bytes_by_kind["gradients"] == sum(p.numel() * 4 for p in with_gradient)
    assert bytes_by_kind["optimizer"] == 2 * bytes_by_kind["gradients"] + 4 * len(with_gradient)
    assert bytes_by_kind["buffers"] == 0


def test_the_remaining_bytes_are_activations() -> None:
    by_kind = with_activations({"parameters": 100, "gradients": 50}, 400)
    assert (by_kind["activations"], sum(by_kind.values())) == (250, 400)
    assert sum(with_activations({"parameters": 100, "gradients": 50}, 120).values()) == 120


def test_owners_are_recounted_rarely() -> None:
    device = torch.device("cpu")
    model = tiny.TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters())
    owned = OwnerBytes(model, optimizer)
    assert owned.read(device)["optimizer"] == 0
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    readings = [owned.read(device) for _ in range(FIRST_READINGS)]
    assert readings[0]["optimizer"] > 0 and readings[0]["gradients"] > 0
    optimizer.zero_grad()
    assert owned.read(device) is readings[-1]


@pytest.mark.gpu
def test_a_gpu_reading_adds_up_to_allocated_memory() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    reset_gpu_peaks(device)
    model, optimizer = _train_once(device)
    reading = read_gpu_bytes(device, OwnerBytes(model, optimizer))
    assert reading.live_bytes == torch.cuda.memory_allocated(device)
    assert reading.reserved_bytes == torch.cuda.memory_reserved(device)
    assert reading.peak_bytes == torch.cuda.max_memory_allocated(device)
    assert sum(reading.live_by_kind.values()) == reading.live_bytes
    assert sum(reading.peak_by_kind.values()) == reading.peak_bytes
    assert reading.live_by_kind["parameters"] == sum(p.numel() * 4 for p in model.parameters())
