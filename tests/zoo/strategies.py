"""The settings that everything in the zoo is run under, on as many ranks as they say.

`devices` are virtual ones of one process where `is_one_process`, else ranks. Each schedule, each sync and
each pair of axes is here once; 2 ranks and 4 take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ONE_PROCESS = ("single", "dp", "model")
_CORE_SETTINGS = (
    "single", "model x2", "ddp x2", "fsdp x2", "pipeline 1f1b x2", "tensor x2", "dp x2",
    "hybrid data x stage", "hybrid shard x tensor", "ddp ring x4", "pipeline zbv x2",
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One way to train. `is_stale`: it computes something else by its nature, and says so."""

    name: str
    num_devices: int
    table: dict[str, Any]
    is_stale: bool = False

    @property
    def order(self) -> int:
        """Some are run before their neighbours, which mostly end as they do."""
        return _CORE_SETTINGS.index(self.name) if self.name in _CORE_SETTINGS else len(_CORE_SETTINGS)

    @property
    def num_ranks(self) -> int:
        return 1 if self.table["use"] in _ONE_PROCESS else self.num_devices


def _pipeline(schedule: str, num_ranks: int, microbatches: int) -> Setting:
    table = {"use": "pipeline", "schedule": schedule, "microbatches": microbatches}
    return Setting(f"pipeline {schedule} x{num_ranks}", num_ranks, table)


def _hybrid(**options: Any) -> Setting:
    axes = {name: size for name, size in options.items() if name in ("data", "shard", "stage", "tensor")}
    return Setting(f"hybrid {' x '.join(axes)}", 4, {"use": "hybrid", **options})


_TABLE = (
    Setting("single", 1, {"use": "single"}),
    Setting("dp x2", 2, {"use": "dp"}),
    Setting("dp x4", 4, {"use": "dp"}),
    Setting("dp parallel_loss x2", 2, {"use": "dp", "parallel_loss": True}),
    Setting("ddp x2", 2, {"use": "ddp"}),
    Setting("ddp bucket view x4", 4, {"use": "ddp", "gradient_as_bucket_view": True, "bucket_mb": 0.01}),
    Setting("ddp reduce-broadcast x2", 2, {"use": "ddp", "sync": "reduce-broadcast"}),
    Setting("ddp all-to-all x4", 4, {"use": "ddp", "sync": "all-to-all"}),
    Setting("ddp ring x4", 4, {"use": "ddp", "sync": "ring"}),
    Setting("ddp find_unused x2", 2, {"use": "ddp", "find_unused_parameters": True}),
    Setting("ddp sync_batchnorm x2", 2, {"use": "ddp", "sync_batchnorm": True}),
    Setting("fsdp x2", 2, {"use": "fsdp"}),
    Setting("fsdp no reshard x4", 4, {"use": "fsdp", "reshard": False}),
    Setting("fsdp find_unused x2", 2, {"use": "fsdp", "find_unused_parameters": True}),
    Setting("model x2", 2, {"use": "model"}),
    Setting("model x4", 4, {"use": "model"}),
    _pipeline("gpipe", 2, 4),
    _pipeline("1f1b", 2, 4),
    _pipeline("1f1b", 4, 8),
    _pipeline("1f1b-by-hand", 2, 4),
    _pipeline("interleaved-1f1b", 2, 4),
    _pipeline("looped-bfs", 2, 4),
    _pipeline("interleaved-zero-bubble", 2, 4),
    _pipeline("zbv", 2, 4),
    _pipeline("dualpipev", 2, 4),
    Setting("pipeline-async x2", 2, {"use": "pipeline-async"}, is_stale=True),
    Setting("tensor x2", 2, {"use": "tensor"}),
    Setting("tensor x4", 4, {"use": "tensor"}),
    Setting("tensor sequence_parallel x2", 2, {"use": "tensor", "sequence_parallel": True}),
    _hybrid(data=2, stage=2, microbatches=4),
    _hybrid(data=2, tensor=2),
    _hybrid(data=2, shard=2),
    _hybrid(shard=2, tensor=2),
    _hybrid(shard=2, stage=2, microbatches=4),
    _hybrid(stage=2, tensor=2, microbatches=4),
)
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _TABLE}
