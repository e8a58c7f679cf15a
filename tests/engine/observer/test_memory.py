"""Memory by owners: every storage once, under what holds it, on a CPU and beside a GPU's allocator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from rankdeck import events
from rankdeck.observer import memory
from tests.helpers.logging_script import expected_values, logging_run


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    optimizer.step()


def _owned_bytes(optimizers: list[torch.optim.Optimizer], *modules: torch.nn.Module) -> dict[str, int]:
    (by_kind,) = memory.owned_bytes(torch, optimizers, modules).values()
    return by_kind


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_the_constants_equal_those_of_events() -> None:
    assert memory.OWNERS_SEEN == events.OWNERS_SEEN
    assert memory.MEASURED_ON_GPU == events.MEASURED_ON_GPU
    assert memory.UNATTRIBUTED == events.UNATTRIBUTED
    assert set(memory.KINDS) <= set(events.MEMORY_KINDS)


def test_a_cpu_rank_reports_memory_by_owner() -> None:
    expected = expected_values()["memory"]
    event = logging_run().events_of_type(events.Memory)[-1]
    assert event.source == events.OWNERS_SEEN
    (device,) = event.devices
    # Of a model that nobody wrapped the buffers may not be known.
    assert device.live_by_kind in (expected, {**expected, "buffers": 0})
    assert device.live_bytes == device.peak_bytes == sum(device.live_by_kind.values())


def test_shared_storages_count_once_and_frozen_weights_count() -> None:
    tied = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    tied[1].weight = tied[0].weight
    tied[1].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([tied[0].weight, tied[0].bias], lr=0.1, momentum=0.9)
    _step(optimizer, tied(torch.ones(3, 4)).sum())
    trained, frozen_and_norm = 4 * (16 + 4), 4 * (4 + 8)
    assert _owned_bytes([optimizer, optimizer]) == {
        "parameters": trained,
        "gradients": trained,
        "optimizer": trained,
    }
    assert _owned_bytes([optimizer], tied) == {
        "parameters": trained + frozen_and_norm,
        "buffers": 4 * 8 + 8,
        "gradients": trained + 4 * 8,  # the norm has gradients, which nobody steps
        "optimizer": trained,
    }


def test_fully_shard_counts_only_local_shards(alone: None) -> None:
    model = torch.nn.Linear(10, 10)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    _step(optimizer, model(torch.ones(2, 10)).sum())
    assert _owned_bytes([optimizer], model) == {"parameters": 440, "gradients": 440, "optimizer": 2 * 440 + 8}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_state_of_a_wrapped_optimizer_belongs_to_the_inner_one(alone: None) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.Linear(10, 10)
    outer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    _step(outer, model(torch.ones(2, 10)).sum())
    assert "optimizer" not in _owned_bytes([outer])
    assert _owned_bytes([outer, outer.optim])["optimizer"] == 2 * 440 + 8


def test_sparse_gradients_and_lists_of_state_are_found() -> None:
    embedding = torch.nn.Embedding(10, 4, sparse=True)
    sparse = torch.optim.SparseAdam(embedding.parameters())
    _step(sparse, embedding(torch.tensor([1, 2])).sum())
    assert _owned_bytes([sparse]) == {"parameters": 160, "gradients": 2 * 8 + 2 * 16, "optimizer": 320}

    linear = torch.nn.Linear(2, 2)
    searching = torch.optim.LBFGS(linear.parameters(), max_iter=3)

    def loss() -> torch.Tensor:
        searching.zero_grad()
        value = linear(torch.ones(1, 2)).pow(2).sum()
        value.backward()
        return value

    searching.step(loss)
    state = searching.state[linear.weight]
    tensors = [*state["old_dirs"], *state["old_stps"], state["d"], state["prev_flat_grad"], state["H_diag"]]
    expected = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    assert _owned_bytes([searching])["optimizer"] >= sum(expected.values()) > 0


def test_allocated_bytes_without_an_owner_are_unattributed() -> None:
    by_kind = {"parameters": 50, "optimizer": 30}
    empty = {"parameters": 0, "buffers": 0, "gradients": 0, "optimizer": 0}
    assert memory.with_unattributed(by_kind, 100) == {**empty, **by_kind, "unattributed": 20}
    # An owner may hold what the allocator did not hand out: never more than there is.
    assert memory.with_unattributed(by_kind, 60) == {
        **empty,
        "parameters": 50,
        "optimizer": 10,
        "unattributed": 0,
    }


def test_memory_is_not_read_again_before_the_interval_ends() -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reader = memory.OwnedMemoryReader(torch, 1)
    first = reader.read([optimizer], [])
    assert first is not None and first["devices"][0]["device"] == 1
    assert reader.read([optimizer], []) is None


@pytest.mark.gpu
def test_gpu_memory_comes_from_the_allocator_without_resetting_peaks() -> None:
    model = torch.nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _step(optimizer, model(torch.ones(64, 256, device="cuda")).sum())
    peak_bytes = torch.cuda.max_memory_allocated()
    facts = memory.OwnedMemoryReader(torch, 0).read([optimizer], [])
    assert facts is not None and facts["source"] == events.MEASURED_ON_GPU
    device = facts["devices"][0]
    assert device["peak_bytes"] == peak_bytes == torch.cuda.max_memory_allocated()
    assert device["live_bytes"] == torch.cuda.memory_allocated()
    assert device["live_by_kind"]["parameters"] == 4 * (256 * 256 + 256)
    assert sum(device["live_by_kind"].values()) == device["live_bytes"]
    assert sum(device["peak_by_kind"].values()) == device["peak_bytes"]
