"""What a rank of a persistent set runs for tests of split layers; called by RankSet.call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import RowwiseParallel

from rankdeck.config.catalog import TensorOptions
from rankdeck.models.gpt import Gpt
from rankdeck.parallel.collectives.comm_counter import CollectiveCounter
from rankdeck.parallel.collectives.grad_sync import GradientSync
from rankdeck.parallel.mesh import Mesh, device_mesh
from rankdeck.parallel.tensor import plan
from rankdeck.parallel.tensor.apply import LayerSplit
from rankdeck.parallel.tensor.gradients import clip_grad_norm_over_ranks
from rankdeck.parallel.tensor.plan import find_plan
from tests.helpers.rank_main import own_slices, train_once


def train_leaving_out(toml: str, out: str, what: str) -> None:
    """A run in which one thing that the strategy does is left out: a key of LEFT_OUT."""
    with LEFT_OUT[what]():
        train_once({"toml": toml, "out": out}, dist.get_rank(), dist.get_world_size())


@contextlib.contextmanager
def _no_sums() -> Iterator[None]:
    """Each rank goes on with what its own rows gave."""

    prepare_output = RowwiseParallel._prepare_output_fn

    def own_part(layouts: Any, use_local_output: bool, module: nn.Module, outputs: DTensor, mesh: Any) -> Any:
        if isinstance(module, nn.Embedding):
            return prepare_output(layouts, use_local_output, module, outputs, mesh)
        return outputs.to_local()

    with mock.patch.object(RowwiseParallel, "_prepare_output_fn", staticmethod(own_part)):
        yield


LEFT_OUT: dict[str, Any] = {
    "data": lambda: mock.patch.object(GradientSync, "sync"),
    "shard": own_slices,
    "sums": _no_sums,
    "ties": lambda: mock.patch.object(LayerSplit, "_retie"),
    "check": lambda: mock.patch.object(plan, "find_differences", lambda *_: []),
    "partial": lambda: mock.patch("rankdeck.strategies.tensor_parallel.reduce_partial_gradients"),
}


def collectives_of_a_step(
    layers: int, batch: int, sequence_parallel: bool
) -> tuple[dict[str, int], int, int]:
    """Calls by kind, bytes by formula, and what this process wrote, for a step of a Gpt with split layers."""
    torch.manual_seed(0)
    model = Gpt(vocabulary=64, layers=layers, heads=4, width=64, context=32)
    tensor_plan = find_plan(model, dist.get_world_size())
    mesh = device_mesh(Mesh.of(dist.get_rank(), tensor=dist.get_world_size()), "cpu")
    split = LayerSplit(model, tensor_plan, mesh, TensorOptions(sequence_parallel=sequence_parallel))
    split.split(model)
    split.finish()
    tokens = torch.randint(64, (batch, 32))
    for _ in range(2):
        counted = CollectiveCounter()
        before_bytes = _written_bytes()
        with counted:
            model(tokens).sum().backward()
        written_bytes = _written_bytes() - before_bytes
    return dict(counted.calls), counted.sent_bytes, written_bytes


def _written_bytes() -> int:
    """What this process has written so far: gloo's messages are among it."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def norm_of_parts(max_norm: float) -> tuple[float, float, list[float]]:
    """The norm over a whole, a sharded and an unevenly sharded gradient; one device's; clipped values."""
    size = dist.get_world_size()
    mesh = device_mesh(Mesh.of(dist.get_rank(), tensor=size), "cpu")
    torch.manual_seed(0)
    gradients = [torch.randn(6, 4), torch.randn(size * 2, 3), torch.randn(size * 2 - 1, 3)]
    parameters = []
    for index, gradient in enumerate(gradients):
        sharded: torch.Tensor = gradient if index == 0 else distribute_tensor(gradient, mesh, [Shard(0)])
        parameter = nn.Parameter(torch.zeros_like(sharded))
        parameter.grad = sharded.clone()
        parameters.append(parameter)
    norm = clip_grad_norm_over_ranks(parameters, max_norm, world_size=size)
    expected = torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))
    clipped = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in parameters]
    return float(norm), float(expected), [float(tensor.sum()) for tensor in clipped if tensor is not None]
