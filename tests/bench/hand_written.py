"""The loop that a person writes, in plain PyTorch: what Rankdeck's training is measured against.

    python -m tests.bench.hand_written digits-mlp --steps 500                             one process
    torchrun --standalone --nproc-per-node 2 -m tests.bench.hand_written digits-mlp ...   DDP over gloo

Model, first weights, optimizer, schedule and the order of the samples are the preset's, taken from Rankdeck,
so that both sides compute the same on the same batches in memory; the loop is not. Prints one JSON line: the
microseconds of a step after the first 20 %, and the loss of step 50 over all ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankdeck.config import load, presets
from rankdeck.data.base import TensorSamples
from rankdeck.data.samplers import TrainBatchSampler
from rankdeck.training import workload as workloads
from rankdeck.training.workload import Workload

WARM_UP_SHARE = 0.2
REPORT_EVERY = 50


def train(workload: Workload, rank: int, world: int, device: torch.device) -> tuple[float, float]:
    """(microseconds per step after the warm-up, this rank's mean loss of step 50)."""
    settings, samples, steps = workload.config.train, workload.train, workload.steps
    assert isinstance(samples, TensorSamples) and workload.config.loss.use == "cross_entropy"
    model: nn.Module = workload.build_model().to(device)
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = workload.build_optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, workload.schedule)
    order = TrainBatchSampler(
        len(samples),
        settings.global_batch,
        shard_index=rank,
        shard_count=world,
        seed=settings.seed,
        steps=steps,
    )
    warm_up, begun_s, reported = int(steps * WARM_UP_SHARE), 0.0, 0.0
    for step, rows in enumerate(order.index_tensors(), start=1):
        inputs, targets = (_on(device, samples.inputs[rows]), _on(device, samples.targets[rows]))
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
            logits = model(inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        if settings.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        schedule.step()
        if step % REPORT_EVERY == 0:
            value = loss.item()
            reported = value if step == REPORT_EVERY else reported
        if step == warm_up:
            begun_s = _now_s(device)
    return (_now_s(device) - begun_s) / (steps - warm_up) * 1e6, reported


def _on(device: torch.device, batch: torch.Tensor) -> torch.Tensor:
    """A GPU gets it from pinned memory, while the host goes on."""
    return batch.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else batch


def _now_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", help="a preset, or a file")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    path = presets.find_preset(args.config) or Path(args.config)
    config = load(path, overrides=[f"train.steps={args.steps}"])
    step_us, loss = train(workloads.load(config), rank, world, torch.device(args.device))
    if world > 1:
        mean = torch.tensor(loss / world)
        dist.all_reduce(mean)
        loss = float(mean)
    if rank == 0:
        print(json.dumps({"step_us": step_us, "loss": loss}), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        # An interpreter that ends with gloo's threads alive now and then aborts.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
