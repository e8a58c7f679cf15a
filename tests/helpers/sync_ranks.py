"""What ranks of a RankSet do in tests of collectives: each function runs on every rank, and returns JSON."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.config import from_text
from rankdeck.parallel.collectives.grad_sync import GradientSync, collect_gradients
from rankdeck.parallel.collectives.sync_batch_norm import convert_batch_norms
from rankdeck.run_dir import EventWriter
from rankdeck.strategies.base import Setup, Strategy
from rankdeck.strategies.facts import SyncFacts
from rankdeck.torch_compat.dtensors import local_part
from rankdeck.training import workload as workloads
from rankdeck.training.assembly import assemble

SHAPES = [(64, 33), (7,), (1,), (128, 5, 3), (300, 40)]


def own_gradients(rank: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def true_sums() -> list[Tensor]:
    by_rank = [own_gradients(rank, torch.float64) for rank in range(dist.get_world_size())]
    return [torch.stack(rank_gradients).sum(0) for rank_gradients in zip(*by_rank, strict=True)]


def fingerprint(tensors: list[Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def sync(algorithm: str, compress: str = "none", bucket_bytes: int = 20_000, steps: int = 1) -> Any:
    """Syncs of the same gradients in every step: the last one's error and bits, and what was sent.

    `drift` is how far the running sum of all steps is off, relative to the true one.
    """
    synced = GradientSync(algorithm=algorithm, compress=compress, bucket_bytes=bucket_bytes)
    total, true = torch.zeros(SHAPES[-1], dtype=torch.float64), true_sums()
    for _ in range(steps):
        gradients = own_gradients(dist.get_rank())
        synced.sync(gradients)
        total += gradients[-1]
    sent = SyncFacts(synced).sent_bytes()
    return {
        "error": max(difference(gradient, sums) for gradient, sums in zip(gradients, true, strict=True)),
        "largest": max(float(sums.abs().max()) for sums in true),
        "drift": float((total / steps - true[-1]).norm() / true[-1].norm()),
        "bits": fingerprint(gradients),
        "sent_bytes": sent.num_bytes,
        "by_peer": sent.by_peer,
        "measured": sent.is_measured,
        "words": sent.algorithm,
        "seconds": None if synced.times is None else synced.times.seconds,
    }


def sent_bytes(algorithm: str, compress: str = "none", num_bytes: int = 4 * 2**20) -> dict[str, int]:
    """What one sync of a tensor says it sends, and what the kernel counted of this process meanwhile."""
    gradients = [torch.ones(num_bytes // 4).view(1024, -1)]
    synced = GradientSync(algorithm=algorithm, compress=compress)
    synced.sync(gradients)
    dist.barrier()
    before = written_bytes()
    synced.sync(gradients)
    written = written_bytes() - before
    dist.barrier()
    return {"told": SyncFacts(synced).sent_bytes().num_bytes, "written": written}


def written_bytes() -> int:
    """Bytes that this process has written so far, to sockets and files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def timed(algorithm: str, num_bytes: int, repetitions: int) -> list[float]:
    """Seconds of each of some syncs of one tensor."""
    gradients = [torch.ones(num_bytes // 4)]
    synced = GradientSync(algorithm=algorithm)
    seconds = []
    for _ in range(repetitions):
        dist.barrier()
        started_s = time.perf_counter()
        synced.sync(gradients)
        seconds.append(time.perf_counter() - started_s)
    return seconds


def all_leave_one_out() -> dict[str, str | None]:
    """What a sync says of a layer that took no part on any rank."""
    model = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))
    model[0](torch.ones(1, 2)).sum().backward()
    try:
        collect_gradients(model)
    except ModelError as error:
        return {"error": error.message, "advice": error.advice}
    return {}


def one_step(toml: str) -> dict[str, Any]:
    """What this rank's strategy tells of a step, and what the kernel counted of the fourth."""
    with _stepping(toml) as (strategy, step):
        for _ in range(3):
            step()
        dist.barrier()
        before = written_bytes()
        step()
        written = written_bytes() - before
        dist.barrier()
        sent, times = strategy.facts.sent_bytes(), strategy.facts.sync_times()
    assert sent is not None
    return {
        "words": sent.algorithm,
        "told": sent.num_bytes,
        "measured": sent.is_measured,
        "written": written,
        "sync_s": None if times is None else times.seconds,
        "overlapped_s": None if times is None else times.overlapped_s,
        "gradient_bytes": sum(p.numel() * p.element_size() for p in strategy.module.parameters()),
        "held_bytes": sum(
            local_part(p).numel() * local_part(p).element_size() for p in strategy.module.parameters()
        ),
    }


def weights_bits(toml: str, steps: int = 0) -> str:
    """The bits of this rank's weights after some steps."""
    with _stepping(toml) as (strategy, step):
        for _ in range(steps):
            step()
        return fingerprint([parameter.detach() for parameter in strategy.module.parameters()])


def resumed_bits(toml: str, after: int, steps: int) -> str:
    """The same bits, where after some steps a new strategy takes over (the optimizer must keep nothing)."""
    with _stepping(toml) as (old, step):
        for _ in range(after):
            step()
        weights = {name: tensor.clone() for name, tensor in old.module.state_dict().items()}
        extra = {name: tensor.clone() for name, tensor in old.extra_state().items()}
    with _stepping(toml, after) as (new, step):
        new.module.load_state_dict(weights)
        new.load_extra_state(extra)
        for _ in range(steps - after):
            step()
        return fingerprint([parameter.detach() for parameter in new.module.parameters()])


@contextlib.contextmanager
def _stepping(toml: str, after: int = 0) -> Iterator[tuple[Strategy, Callable[[], object]]]:
    """A strategy of all ranks, and what takes its next step; `after` more than 0 is a run that goes on."""
    config = from_text(toml, folder=Path.cwd())
    with tempfile.TemporaryDirectory() as folder:
        trainer = assemble(
            workloads.load(config),
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            devices=[torch.device("cpu")],
            device_indices=[dist.get_rank()],
            writer=EventWriter(Path(folder) / "events.jsonl"),
        )
        if after and trainer.strategy.needs_warm_up:
            trainer.warm_up()
        loader = trainer.loader(after)
        batches, numbers = iter(loader), itertools.count(after + 1)
        yield trainer.strategy, lambda: trainer.step(next(numbers), batches, is_tracked=False)
        loader.close()
        trainer.strategy.close()


def first_weights(toml: str) -> dict[str, Any]:
    """The weights that a strategy begins with: on rank 0 how far they are from a single device's."""
    config = from_text(toml, folder=Path.cwd())
    workload = workloads.load(config)
    setup = Setup(
        options=config.strategy_spec.options(**config.strategy.options),
        loss=workload.loss,
        devices=[torch.device("cpu")],
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
    )
    strategy = config.strategy_spec.load()(setup)
    built: list[str] = []

    def build() -> nn.Module:
        model = workload.build_model()
        built.extend({parameter.device.type for parameter in model.parameters()})
        return model

    strategy.build(build)
    weights, single = strategy.weights(), workload.build_model().state_dict()
    if dist.get_rank() == 0:
        assert weights.keys() == single.keys()
        return {"built": built, "off": max(difference(weights[name], single[name]) for name in single)}
    return {"built": built, "off": float(len(weights))}


def unused_parameters() -> dict[str, Any]:
    """Gradients of a module whose second layer only rank 0 uses, and whose third nobody does."""
    model = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))
    nn.init.ones_(model[0].weight)
    nn.init.ones_(model[1].weight)
    hidden = model[0](torch.ones(1, 2))
    (model[1](hidden) if dist.get_rank() == 0 else hidden).sum().backward()
    GradientSync(algorithm="ring").sync(collect_gradients(model, find_unused=True))
    return {
        name: None if p.grad is None else p.grad.flatten().tolist() for name, p in model.named_parameters()
    }


def batch_norm(dtype: str, dims: int, momentum: float | None, sizes: list[int]) -> dict[str, float]:
    """Largest differences of a batch norm over ranks from one over the whole batch."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    kind = (nn.BatchNorm1d, nn.BatchNorm2d)[dims // 4]
    reference = kind(5, momentum=momentum).to(getattr(torch, dtype))
    nn.init.normal_(reference.weight)
    nn.init.normal_(reference.bias)
    parted = kind(5, momentum=momentum).to(getattr(torch, dtype))
    parted.load_state_dict(reference.state_dict())
    convert_batch_norms(parted, on_cpu=True)
    shape = (sum(sizes), 5, *[3] * (dims - 2))
    inputs = torch.randn(shape, dtype=reference.weight.dtype) * 3 + 7
    pull = torch.randn(shape, dtype=reference.weight.dtype)
    start = sum(sizes[:rank])
    mine = slice(start, start + sizes[rank])
    left, right = inputs.clone().requires_grad_(), inputs[mine].clone().requires_grad_()
    for _ in range(2):
        left.grad = right.grad = None
        out_left, out_right = reference(left), parted(right)
        (out_left * pull).sum().backward()
        (out_right * pull[mine]).sum().backward()
    assert left.grad is not None and right.grad is not None
    gradients = collect_gradients(parted)
    GradientSync(algorithm="native").sync(gradients)
    parted.eval()
    reference.eval()
    same = zip(reference.state_dict().values(), parted.state_dict().values(), strict=True)
    return {
        "outputs": difference(out_left[mine], out_right),
        "inputs": difference(left.grad[mine], right.grad),
        "weights": max(
            difference(parameter.grad, other)
            for parameter, other in zip(reference.parameters(), gradients, strict=True)
            if parameter.grad is not None
        ),
        "state": max(difference(state, other) for state, other in same),
        "evaluated": difference(reference(inputs), parted(inputs)),
    }


def difference(left: Tensor, right: Tensor) -> float:
    return float((left.double() - right.double()).abs().max())
