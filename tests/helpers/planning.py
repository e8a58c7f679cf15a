"""Plans beside measurements: small models under every strategy, predicted by the planner and measured by the
ledger of real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from rankdeck.config import RunConfig, from_text
from rankdeck.memory.ledger import Ledger
from rankdeck.planner.fake_pass import PassRequest, fake_pass
from rankdeck.planner.plan_ledger import PlanLedger
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run_dir import EventWriter
from rankdeck.training import workload as workloads
from rankdeck.training.assembly import assemble
from rankdeck.training.loop import Trainer
from tests.helpers.checkout import PRODUCT_AND_TESTS
from tests.helpers.ranks import RankSet

_FACTORIES = Path(__file__).with_name("hugging_face.py")
_PADDED = Path(__file__).with_name("padded.py")
_HUGGING_FACE = """
model = {{ use = "{factories}:{model}" }}
data = {{ use = "{factories}:{data}" }}
loss = {{ use = "model" }}
"""
MODELS = {
    "mlp": """
model = { use = "mlp", args = { hidden = [512, 512, 256, 256, 128] } }
data = { use = "synthetic", args = { samples = 256 } }
""",
    "gpt": """
model = { use = "gpt", args = { layers = 4, heads = 4, width = 64, context = 32, vocabulary = 512 } }
data = { use = "synthetic", args = { samples = 256 } }
""",
    "hf-gpt2": _HUGGING_FACE.format(factories=_FACTORIES, model="gpt2", data="tokens"),
    "hf-llama": _HUGGING_FACE.format(factories=_FACTORIES, model="llama", data="tokens"),
    "hf-bert": _HUGGING_FACE.format(factories=_FACTORIES, model="bert", data="tokens"),
    "hf-llama-adapted": _HUGGING_FACE.format(factories=_FACTORIES, model="llama_adapted", data="tokens"),
    "padded": f"""
model = {{ use = "{_PADDED}:model" }}
data = {{ use = "{_PADDED}:often_long" }}
""",
    "sparse": f"""
model = {{ use = "{_PADDED.with_name("own_models.py")}:looked_up" }}
data = {{ use = "{_PADDED.with_name("own_data.py")}:words" }}
""",
    "resnet": """
model = { use = "resnet", args = { depth = 18, stem = "small" } }
data = { use = "synthetic", args = { samples = 64 } }
""",
}
_SKIPPING = Path(__file__).with_name("skipping.py")
MODELS |= {
    name: f'model = {{ use = "{_SKIPPING}:{factory}" }}\ndata = {{ use = "digits" }}'
    for name, factory in (("unet", "unet"), ("residual", "residual_mlp"))
}
STRATEGIES = {
    "single": '{ use = "single" }',
    "dp": '{ use = "dp" }',
    "dp-parallel-loss": '{ use = "dp", parallel_loss = true }',
    "model": '{ use = "model" }',
    "ddp": '{ use = "ddp" }',
    "ddp-bucket-view": '{ use = "ddp", gradient_as_bucket_view = true }',
    "ddp-ring": '{ use = "ddp", sync = "ring" }',
    "fsdp": '{ use = "fsdp" }',
    "fsdp-whole": '{ use = "fsdp", reshard = false }',
    "gpipe": '{ use = "pipeline", schedule = "gpipe", microbatches = 4 }',
    "1f1b": '{ use = "pipeline", schedule = "1f1b", microbatches = 4 }',
    "1f1b-by-hand": '{ use = "pipeline", schedule = "1f1b-by-hand", microbatches = 4 }',
    "pipeline-async": '{ use = "pipeline-async" }',
    "tensor": '{ use = "tensor" }',
    "data-stage": '{ use = "hybrid", data = 2, stage = 2, microbatches = 4 }',
    "data-shard": '{ use = "hybrid", data = 2, shard = 2 }',
    "data-tensor": '{ use = "hybrid", data = 2, tensor = 2 }',
}
_ONE_PROCESS = ("single", "dp", "dp-parallel-loss", "model")
_FOUR_DEVICE_STRATEGIES = ("data-stage", "data-shard", "data-tensor")
_NO_LAYERS_TO_SPLIT = ("mlp", "resnet", "hf-gpt2", "hf-llama-adapted", "unet", "residual", "sparse")
_REFUSED = {
    "tensor": _NO_LAYERS_TO_SPLIT,
    "data-tensor": _NO_LAYERS_TO_SPLIT,
    "pipeline-async": ("gpt", "hf-gpt2", "hf-bert"),
    **dict.fromkeys(
        ("dp", "dp-parallel-loss", "ddp-ring", "fsdp", "fsdp-whole", *_FOUR_DEVICE_STRATEGIES[:2]),
        ("sparse",),
    ),
}
"""What cannot be split, weights that are tied across stages that drift, and sparse gradients where they would
have to be added up or cut."""
_OPTIMIZERS = {"sparse": "sgd"}
NUM_TRACKED = 3
STEPS_PER_ROUND = {"padded": 12}
"""Steps until every batch has come once, where they are not alike; 1 elsewhere."""


@dataclass(frozen=True)
class Case:
    """One configuration: a model, a strategy and a number of devices, by the names above."""

    model: str
    strategy: str
    num_devices: int

    def __str__(self) -> str:
        return f"{self.model}-{self.strategy}"

    @property
    def toml(self) -> str:
        return f"""{MODELS[self.model]}
strategy = {STRATEGIES[self.strategy]}
devices = {{ use = "cpu:{self.num_devices}" }}
[train]
steps = 64
global_batch = 16
evaluate_every = 0
optimizer = {{ use = "{_OPTIMIZERS.get(self.model, "adamw")}", lr = 1e-3 }}
"""

    @property
    def config(self) -> RunConfig:
        return from_text(self.toml, folder=Path.cwd())

    @property
    def steps_per_round(self) -> int:
        return STEPS_PER_ROUND.get(self.model, 1)

    @property
    def has_ranks(self) -> bool:
        return self.strategy not in _ONE_PROCESS


def cases(num_devices: int) -> Iterator[Case]:
    """Every model under every strategy that takes it, on so many devices."""
    for model in MODELS:
        for strategy in STRATEGIES:
            if model not in _REFUSED.get(strategy, ()) and (
                num_devices == 4 or strategy not in _FOUR_DEVICE_STRATEGIES
            ):
                yield Case(model, strategy, num_devices)


class Planner:
    """A process that plans (plan_main.py). Close it."""

    def __init__(self) -> None:
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PRODUCT_AND_TESTS}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("plan_main.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )

    def plan(self, case: Case) -> PlanLine:
        """The planner's line, by the rules of a rehearsal: no rounding, a CPU's kernels."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(case.toml).encode() + b"\n")
        self._process.stdin.flush()
        return plan_lines.decode(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


def measure(case: Case, ranks: RankSet | None, *, lowest_of: int = 1) -> list[int]:
    """Peak bytes of each device in a followed step, by the ledger of real ranks or of this process.

    `lowest_of` several steps leaves out what gloo's own thread now and then holds for longer than it must.
    """
    if not case.has_ranks:
        return measure_peaks(case.toml, lowest_of, case.steps_per_round)
    assert ranks is not None
    answered = ranks.call(
        "tests.helpers.planning:measure_peaks",
        toml=case.toml,
        lowest_of=lowest_of,
        steps_per_round=case.steps_per_round,
    )
    return [num_bytes for answer in answered for num_bytes in answer]


def measure_peaks(toml: str, lowest_of: int = 1, steps_per_round: int = 1) -> list[int]:
    """Peak bytes of the devices that this process drives: the highest of a round of followed steps, and of
    the last few rounds the lowest."""
    peaks = zip(*peaks_by_step(toml, lowest_of * steps_per_round), strict=True)
    return [_lowest_of_rounds(rank_peaks, lowest_of, steps_per_round) for rank_peaks in peaks]


def peaks_by_step(toml: str, num_steps: int) -> list[list[int]]:
    """Peak bytes of the devices that this process drives, in the first followed steps, which are more where
    a pipeline fills up first, and `num_steps` others."""
    config = from_text(toml, folder=Path.cwd())
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device_indices = [rank] if world_size > 1 else list(range(config.selection.count or 1))
    if config.strategy_spec.one_device:
        device_indices = device_indices[:1]
    trainer = assemble(
        workloads.load(config),
        rank=rank,
        world_size=world_size,
        devices=[torch.device("cpu")] * len(device_indices),
        device_indices=device_indices,
        writer=EventWriter(Path(os.devnull)),
    )
    loader = trainer.loader()
    try:
        batches = iter(loader)
        peaks = []
        assert isinstance(trainer.ledger, Ledger)
        # Ranks fill an asynchronous pipeline one after another, and all have to take as many steps.
        num_first = NUM_TRACKED + (2 * world_size if trainer.strategy.owns_optimizer_step else 0)
        for step in range(1, num_first + num_steps):
            trainer.step(step, batches, is_tracked=True)
            peaks.append([device.peak_bytes for device in trainer.ledger.devices()])
        return peaks
    finally:
        loader.close()
        trainer.strategy.close()


def _lowest_of_rounds(peaks: Sequence[int], lowest_of: int, steps_per_round: int) -> int:
    last = peaks[-lowest_of * steps_per_round :]
    rounds = [last[start : start + steps_per_round] for start in range(0, len(last), steps_per_round)]
    return min(map(max, rounds))


def relative_errors(predicted: list[int], measured: list[int]) -> list[float]:
    """(predicted - measured) / measured, per device."""
    return [guess / truth - 1 for guess, truth in zip(predicted, measured, strict=True)]


def build_memory(toml: str) -> tuple[int, int, bool]:
    """What this rank's device held at most while its strategy was built, what it holds then, and on rank 0
    whether all weights are a single device's to the bit."""
    config = from_text(toml, folder=Path.cwd())
    rank, workload = dist.get_rank(), workloads.load(config)
    trainer = assemble(
        workload,
        rank=rank,
        world_size=dist.get_world_size(),
        devices=[torch.device("cpu")],
        device_indices=[rank],
        writer=EventWriter(Path(os.devnull)),
    )
    assert isinstance(trainer.ledger, Ledger)
    device = trainer.ledger.devices()[0]
    weights, single = trainer.strategy.weights(), workload.build_model().state_dict()
    trainer.strategy.close()
    equal = rank > 0 or all(torch.equal(weights[name], single[name]) for name in single)
    return device.peak_bytes, device.live_bytes, equal


def planned_build_peak(toml: str, num_devices: int) -> int:
    """The most bytes that rank 0's device is planned to hold while its strategy is built."""
    peaks: list[int] = []

    def no_steps(trainer: Trainer, workload: workloads.Workload, ledger: PlanLedger, *arguments: Any) -> Any:
        peaks.append(ledger.devices()[0].peak_bytes)
        return {}, []

    with mock.patch("rankdeck.planner.fake_pass._run_steps", no_steps):
        fake_pass(PassRequest(from_text(toml, folder=Path.cwd()), num_devices))
    return peaks[0]
