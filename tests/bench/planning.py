"""What planning costs: nine strategies of GPT-2 124M on four devices, and a model of 1.3 billion parameters.

    .venv/bin/python -m tests.bench.planning      goals: 15 s on two cores, the first answer in 3 s, 6 GiB

CPU seconds are those of this process and its children together, import of torch included; on two idle cores
the wall time is about half of them.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

_STARTED_S = time.monotonic()

from rankdeck.planner.preload import preload  # noqa: E402 - imports are part of what is timed

preload()

from rankdeck.config import RunConfig, from_text  # noqa: E402
from rankdeck.config.gpu_models import parse_planned  # noqa: E402
from rankdeck.planner.candidates import Candidate  # noqa: E402
from rankdeck.planner.pool import plan_lines_of  # noqa: E402
from rankdeck.planner.targets import Target, TargetDevice  # noqa: E402

_GPT = """
data = {{ use = "synthetic", args = {{ samples = 64 }} }}
train = {{ global_batch = 16 }}
[model]
use = "gpt"
args = {{ {sizes}, context = 1024, vocabulary = 50257, tied = true }}
"""
ROWS = (
    Candidate("single"),
    Candidate("dp"),
    Candidate("dp", {"parallel_loss": True}),
    Candidate("ddp"),
    Candidate("fsdp"),
    Candidate("model"),
    Candidate("pipeline", {"schedule": "gpipe", "microbatches": 4}),
    Candidate("pipeline", {"schedule": "1f1b", "microbatches": 4}),
    Candidate("tensor"),
)


def gpt(**sizes: int) -> RunConfig:
    told = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return from_text(_GPT.format(sizes=told), folder=Path.cwd())


def target(text: str) -> Target:
    models = parse_planned(text) or []
    devices = tuple(TargetDevice(model.name, model.total_bytes, 0, model) for model in models)
    return Target(text, devices, like_cuda=True)


def cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    four = target("4 x A100-80GB")
    for line in plan_lines_of(gpt(layers=12, heads=12, width=768), ROWS, four):
        active = ", ".join(f"{device.active_bytes / 2**20:.0f}" for device in line.devices)
        since_s = time.monotonic() - _STARTED_S
        print(
            f"{since_s:6.1f} s  {cpu_s():6.1f} CPU s  {line.label:32} {line.verdict} {active} MiB", flush=True
        )
    print("1.3 billion parameters:")
    for line in plan_lines_of(
        gpt(layers=24, heads=16, width=2048), [Candidate("single"), Candidate("fsdp")], four
    ):
        largest_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(
            f"{line.label:16} {line.verdict} {line.seconds:.1f} s, host memory at most {largest_gib:.2f} GiB"
        )


if __name__ == "__main__":
    main()
