"""The true peaks of rank r of N on one GPU: real CUDA tensors, collectives that are done at once.

python gpu_peaks.py '["ddp", {}]' RANK RANKS PRECISION      one JSON object on the last line of stdout
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from rankdeck.config import RunConfig, from_text  # noqa: E402

NUM_STEPS = 3
_MODEL = """
data = {{ use = "synthetic", args = {{ samples = 64 }} }}
train = {{ global_batch = 16, precision = "{precision}", evaluate_every = 0, steps = 5 }}
devices = {{ use = "gpu:0" }}
[model]
use = "gpt"
args = {{ layers = 8, heads = 8, width = 512, context = 512, vocabulary = 32000 }}
"""


def config(precision: str) -> RunConfig:
    return from_text(_MODEL.format(precision=precision), folder=Path.cwd())


def peaks(
    strategy: str, options: dict[str, Any], rank: int, num_ranks: int, precision: str
) -> dict[str, Any]:
    """Peak bytes of one rank's allocator over a few steps, and what NVML says of this process."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from rankdeck.planner.candidates import Candidate
    from rankdeck.planner.planned_torch import planned
    from rankdeck.planner.targets import Target, TargetDevice
    from rankdeck.rundir import EventWriter
    from rankdeck.training import workload as workloads
    from rankdeck.training.assembly import assemble

    target = Target("one GPU", (TargetDevice(None, None),) * num_ranks, like_cuda=True)
    chosen = Candidate(strategy, options).config(config(precision), target)
    has_ranks = not chosen.strategy_card.one_process
    device = torch.device("cuda", 0)
    if has_ranks:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    # The places where ranks would talk for real (DDP's first exchange, votes of a pipeline) are planned ones.
    with planned(like_cuda=True, initial_values=True), static_pipelines():
        trainer = assemble(
            workloads.load(chosen),
            rank=rank if has_ranks else 0,
            world_size=num_ranks if has_ranks else 1,
            devices=[device],
            places=[rank if has_ranks else 0],
            writer=EventWriter(Path(os.devnull)),
        )
        batches = iter(trainer.loader())
        for step in range(1, NUM_STEPS + 1):
            trainer.step(step, batches, followed=False)
        torch.cuda.synchronize()
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
        "process_bytes": process_bytes(),
    }


@contextlib.contextmanager
def static_pipelines() -> Iterator[None]:
    """Shapes of a pipeline are known: its stages need not vote, which nobody would answer."""
    from torch.distributed.pipelining import schedules

    def settled(_schedule: object, stages: list[Any], *_: object) -> None:
        for stage in stages:
            stage._inference_mode = schedules.InferenceMode.STATIC

    with mock.patch.object(schedules._PipelineSchedule, "_warmup_p2p", settled):
        yield


def process_bytes() -> int | None:
    """What the driver says this process holds; None where it does not tell (in most containers)."""
    from rankdeck.telemetry.listing import list_gpus

    own = [process for gpu in list_gpus() for process in gpu.processes if process.pid == os.getpid()]
    return own[0].used_bytes if own else None


if __name__ == "__main__":
    (chosen_strategy, chosen_options), *rest = json.loads(sys.argv[1]), *sys.argv[2:]
    found = peaks(chosen_strategy, chosen_options, int(rest[0]), int(rest[1]), rest[2])
    print(json.dumps(found))
