"""Activation checkpointing changes memory and time, never a gradient, a name or a running statistic."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.models import gpt, mlp, resnet
from rankdeck.models.checkpointing import checkpoint_blocks

MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor, int]] = {
    "mlp": (lambda: mlp.build(inputs=64, classes=10), torch.rand(3, 64), 2),
    "gpt": (
        lambda: gpt.build(vocabulary=50, layers=3, heads=2, width=16, context=12, dropout=0.1),
        torch.randint(50, (3, 12)),
        3,
    ),
    "resnet": (lambda: resnet.build(classes=7, stem="small"), torch.rand(2, 3, 8, 8), 8),
    "sequential": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))),
        torch.rand(5, 4),
        2,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_checkpointing_does_not_change_gradients_and_buffers(name: str) -> None:
    build, inputs, num_blocks = MODELS[name]
    torch.manual_seed(0)
    plain = build()
    wrapped = copy.deepcopy(plain)
    assert checkpoint_blocks(wrapped) == num_blocks
    for model in (plain, wrapped):
        for _ in range(2):
            torch.manual_seed(1)
            model(inputs).square().sum().backward()
    for (key, parameter), (other_key, other) in zip(
        plain.named_parameters(), wrapped.named_parameters(), strict=True
    ):
        assert key == other_key
        assert parameter.grad is not None
        assert other.grad is not None
        assert torch.equal(parameter.grad, other.grad), key
    for (key, one_buffer), (_, other_buffer) in zip(
        plain.named_buffers(), wrapped.named_buffers(), strict=True
    ):
        assert torch.equal(one_buffer, other_buffer), key


def test_fewer_activations_are_saved_for_backward() -> None:
    def saved_bytes(model: nn.Module) -> int:
        storages: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(torch.randint(50, (4, 64)))
        return sum(storages.values())

    model = gpt.build(vocabulary=50, layers=4, heads=2, width=32, context=64)
    before = saved_bytes(model)
    checkpoint_blocks(model)
    assert saved_bytes(model) < before / 2


def test_wrapping_keeps_names_and_type_and_is_idempotent() -> None:
    model = mlp.build(inputs=4, classes=2, hidden=[3])
    names = list(model.state_dict())
    checkpoint_blocks(model)
    first = type(model.blocks[0])
    checkpoint_blocks(model)
    assert type(model.blocks[0]) is first
    assert isinstance(model.blocks[0], mlp.MlpBlock)
    assert list(model.state_dict()) == names


def test_a_shallow_replica_uses_its_own_weights() -> None:
    block = mlp.build(inputs=4, classes=2, hidden=[3])
    checkpoint_blocks(block)
    original = block.blocks[0]
    replica = original._replicate_for_data_parallel()
    replica._modules = {"linear": nn.Linear(4, 3), "activation": nn.Identity(), "dropout": nn.Identity()}
    inputs = torch.rand(2, 4)
    assert torch.equal(replica(inputs), replica.linear(inputs))
    assert not torch.equal(replica(inputs), original(inputs))


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ModelError, match="Linear has no list of blocks"):
        checkpoint_blocks(nn.Linear(2, 2))
