"""The loop that a person writes: what Rankdeck's training is measured against. Plain PyTorch, no Rankdeck.

    python hand_written.py --steps 500                              one process
    torchrun --standalone --nproc-per-node 2 hand_written.py ...    DDP over gloo

Prints one JSON line: samples per second of all ranks over the steps after the first 20 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WARM_UP_SHARE = 0.2
TOLD_EVERY = 50


def build_model(hidden: list[int]) -> nn.Module:
    """Pixels (B, 64) to logits (B, 10)."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([64, *hidden]):
        layers += [nn.Linear(inputs, outputs), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], 10))


def build_loader(batch: int, workers: int) -> DataLoader[Any]:
    digits = load_digits()
    pixels = torch.tensor(digits.data / 16, dtype=torch.float32)
    dataset = TensorDataset(pixels, torch.tensor(digits.target))
    if dist.is_initialized():
        sampler: DistributedSampler[Any] = DistributedSampler(dataset, shuffle=True, drop_last=True)
        return DataLoader(dataset, batch, sampler=sampler, drop_last=True, num_workers=workers)
    return DataLoader(dataset, batch, shuffle=True, drop_last=True, num_workers=workers)


def endless(loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    epoch = 0
    while True:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def cosine(warmup: int, steps: int) -> Callable[[int], float]:
    """The share of the rate at a step: up in a straight line, then half a cosine down."""

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return share


def train(args: argparse.Namespace) -> float:
    """Samples per second after the warm-up."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    torch.manual_seed(0)
    model = build_model(args.hidden)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(args.warmup, args.steps))
    batches = endless(build_loader(args.global_batch // world, args.workers))
    warm_up = int(args.steps * WARM_UP_SHARE)
    begun_s = time.perf_counter()
    for step in range(1, args.steps + 1):
        inputs, targets = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if args.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip_norm)
        optimizer.step()
        schedule.step()
        if step % TOLD_EVERY == 0:
            loss.item()
        if step == warm_up:
            begun_s = time.perf_counter()
    samples = int((args.steps - warm_up) * args.global_batch)
    return samples / (time.perf_counter() - begun_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument("--hidden", type=int, nargs="+", required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--clip-norm", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    samples_per_s = train(args)
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps({"samples_per_s": samples_per_s}), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        # An interpreter that ends with gloo's threads alive now and then aborts.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
