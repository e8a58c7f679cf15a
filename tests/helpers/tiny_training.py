"""Small models and steps for tests of memory and of movements: an MLP, a GPT, the allocator's truth."""

from __future__ import annotations

import ctypes
import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from rankdeck.memory.virtual import VirtualDevices
from rankdeck.parallel.collectives.fan_out import data_parallel
from rankdeck.parallel.collectives.replica_threads import ReplicaThreads

Batch = tuple[Tensor, Tensor]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class TinyGPT(nn.Module):
    """Tokens (B, T) -> logits (B, T, V), with the output layer tied to the embedding."""

    def __init__(self, vocabulary: int = 512, width: int = 64, length: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def tiny_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def mlp_batch(batch: int = 256) -> Batch:
    return torch.randn(batch, 64), torch.randint(0, 10, (batch,))


def gpt_batch(batch: int = 8, vocabulary: int = 512, length: int = 32) -> Batch:
    return torch.randint(0, vocabulary, (batch, length)), torch.randint(0, vocabulary, (batch, length))


def summed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="sum")


class WithLoss(nn.Module):
    """The loss inside the forward, so that only losses are gathered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return summed_loss(self.model(inputs), targets)


def plain_backward(model: nn.Module, batch: Batch) -> float:
    loss = summed_loss(model(batch[0]), batch[1])
    (loss / batch[1].numel()).backward()
    return loss.item()


def dp_backward(model: nn.Module, batch: Batch, threads: ReplicaThreads) -> float:
    """DataParallel's step: outputs gathered and the loss made on device 0."""
    with threads.devices.ledger.phase("gathered"), threads.count_busy(0):
        loss = summed_loss(data_parallel(model, (batch[0],), threads), batch[1])
        (loss / batch[1].numel()).backward()
    return loss.item()


def parallel_loss_backward(model: nn.Module, batch: Batch, threads: ReplicaThreads) -> float:
    """The same step with the loss inside the forward."""
    losses: Tensor = data_parallel(WithLoss(model), batch, threads)
    loss = losses.sum()
    (loss / batch[1].numel()).backward()
    return loss.item()


@contextmanager
def replica_threads(num_devices: int, devices: VirtualDevices | None = None) -> Iterator[ReplicaThreads]:
    with ReplicaThreads(devices or VirtualDevices(num_devices)) as threads:
        yield threads


def allocator_rise_bytes(
    step: Callable[[], object], folder: Path, threads: ReplicaThreads | None = None
) -> int:
    """By how many bytes host memory rose above its start during `step`, from the allocator's own events.

    Counts the calling thread, and the replicas' threads if given.
    Source: torch.profiler with profile_memory; it knows nothing of the ledger.
    """
    # What another test has left would be freed meanwhile, and make the rise look smaller.
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        if threads is not None:
            # In turn: side by side, now and then one thread goes without its events.
            threads.run_sequentially([_profiler_in_thread("27enable")] * len(threads.busy_s), "forward")
        step()
        if threads is not None:
            threads.run_sequentially([_profiler_in_thread("28disable")] * len(threads.busy_s), "forward")
    trace = folder / "trace.json"
    recorded.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    assert changes, "the profiler saw no allocation"
    now = highest = 0
    for _, num_bytes in changes:
        now += num_bytes
        highest = max(highest, now)
    return highest


def _profiler_in_thread(verb: str) -> Callable[[], object]:
    """torch::autograd::profiler::{enable,disable}ProfilerInChildThread, which Python has no name for."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    function: Callable[[], object] = library[f"_ZN5torch8autograd8profiler{verb}ProfilerInChildThreadEv"]
    return function
