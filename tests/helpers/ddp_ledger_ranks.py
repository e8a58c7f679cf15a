"""What each rank does in test_ddp_ledger.py: DDP and FSDP on gloo, and what the ledger says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rankdeck.memory.ledger import Ledger
from tests.helpers import tiny_training as tiny

NUM_STEPS = 8
ALWAYS = tuple(range(NUM_STEPS))
LATE = (0, 1, 2, NUM_STEPS - 1)


def run(folder: str) -> dict[str, dict[str, Any]]:
    """What this rank finds; called by RankSet.call. `folder` is for traces."""
    truth_path = Path(folder) / f"own-{dist.get_rank()}"
    truth_path.mkdir()
    return {
        "always": _train(_ddp(False), ALWAYS),
        "late": _train(_ddp(False), LATE),
        "bucket_view": _train(_ddp(True), LATE),
        "truth": _train(_ddp(False), LATE, truth_folder=truth_path),
        "fsdp_always": _train(_fsdp, ALWAYS),
        "fsdp_late": _train(_fsdp, LATE),
    }


def _ddp(bucket_view: bool) -> Callable[[nn.Module, Ledger], nn.Module]:
    def wrap(model: nn.Module, ledger: Ledger) -> nn.Module:
        with ledger.phase("communication"):
            return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)

    return wrap


def _fsdp(model: nn.Module, ledger: Ledger) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    assert isinstance(model, tiny.TinyGPT)
    with ledger.phase("parameters"):
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def _train(
    wrap: Callable[[nn.Module, Ledger], nn.Module],
    followed: tuple[int, ...],
    truth_folder: Path | None = None,
) -> dict[str, Any]:
    torch.manual_seed(0)
    ledger = Ledger(1)
    batch = tiny.gpt_batch()
    with ledger.tracking():
        with ledger.phase("parameters"):
            model = tiny.TinyGPT()
        net = wrap(model, ledger)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ledger.watch(model, optimizer)

    def step() -> None:
        if isinstance(net, nn.parallel.DistributedDataParallel):
            with ledger.phase("communication"):  # its final buckets, before the second step
                net.reducer._rebuild_buckets()
        tiny.plain_backward(net, batch)
        optimizer.step()
        optimizer.zero_grad()

    def followed_step() -> None:
        ledger.reset_peaks()
        with ledger.tracking():
            step()

    for index in range(NUM_STEPS):
        (followed_step if index in followed else step)()
    reading = ledger.devices()[0]
    result: dict[str, Any] = {
        "peak_bytes": reading.peak_bytes,
        "live_bytes": reading.live_bytes,
        "peak_by_kind": reading.peak_by_kind,
        "live_by_kind": reading.live_by_kind,
        "parameter_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
    }
    if truth_folder is not None:
        result["truth_bytes"] = ledger.live_bytes + tiny.allocator_rise_bytes(followed_step, truth_folder)
        result["peak_bytes"] = ledger.peak_bytes
    return result
