"""A run of a person's own script as supervisor and observer would write it, for readers. Nothing runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankdeck import events
from rankdeck.config.script import ScriptConfig, ScriptTable
from tests.helpers.written_run import WrittenRun


class WrittenScript(WrittenRun):
    """`config` are keys of its [script] table."""

    def __init__(self, runs: Path, name: str = "train.py", config: Mapping[str, Any] | None = None) -> None:
        super().__init__(runs, name, config)

    def _config(self, runs: Path, name: str, config: Mapping[str, Any]) -> ScriptConfig:
        table = {"run": "train.py", "folder": str(runs.parent), "python": "/usr/bin/python3", **config}
        return ScriptConfig(name=name, script=ScriptTable(**table))

    def start_script(
        self,
        ranks: int = 1,
        devices: Sequence[events.DeviceInfo] | None = None,
        *,
        attempt: int = 0,
        cores: int | None = None,
    ) -> None:
        """The supervisor's announcement."""
        if devices is None:
            devices = [events.DeviceInfo(rank, f"CPU {rank}", "virtual") for rank in range(ranks)]
        self.writer("supervisor", attempt).write(
            events.RunStarted(
                run=self.dir.name,
                attempt=attempt,
                world_size=ranks,
                devices=list(devices),
                started=self.started,
                source=events.SCRIPT,
                cores=cores,
            )
        )

    def observe_rank(
        self,
        rank: int = 0,
        *,
        attempt: int = 0,
        world_size: int | None = None,
        threads: int | None = None,
        **fields: Any,
    ) -> None:
        """A rank has stepped an optimizer for the first time."""
        writer = self.writer(f"rank-{rank}", attempt)
        writer.write(
            events.RankStarted(
                rank=rank, pid=1000 + rank, devices=[rank], world_size=world_size, threads=threads
            )
        )
        writer.write(events.Observed(rank=rank, script="train.py", **fields))

    def write_step_line(
        self,
        rank: int,
        first: int,
        losses: Sequence[float | None],
        *,
        attempt: int = 0,
        step_s: float = 0.5,
        samples: int | None = None,
        wait_s: float | None = None,
        late_s: float = 0.0,
        lr: float | None = 0.1,
        grad_norm: float | None = None,
    ) -> None:
        """A line of consecutive steps; where a loss is None, the step was not sampled."""
        num_steps = len(losses)
        self.writer(f"rank-{rank}", attempt).write(
            events.Steps(
                rank=rank,
                first=first,
                loss_sum=list(losses),
                count=[1.0] * num_steps,
                lr=[None if loss is None else lr for loss in losses],
                samples=[samples] * num_steps,
                step_s=[step_s] * num_steps,
                ended=[self.started + late_s + step_s * (first + index) for index in range(num_steps)],
                grad_norm=[None if loss is None else grad_norm for loss in losses],
                wait_s=None if wait_s is None else [wait_s] * num_steps,
            )
        )

    def write_owner_memory(
        self, rank: int, by_kind: Mapping[str, int], *, step: int = 3, attempt: int = 0
    ) -> None:
        """What the owners that were found hold on the rank's device."""
        total_bytes = sum(by_kind.values())
        device = events.DeviceMemory(rank, total_bytes, total_bytes, live_by_kind=dict(by_kind))
        self.writer(f"rank-{rank}", attempt).write(
            events.Memory(rank=rank, step=step, source=events.OWNERS_SEEN, devices=[device])
        )

    def write_logged(
        self,
        rank: int = 0,
        *,
        through: str = "rankdeck",
        steps: Sequence[int | None] = (),
        after: Sequence[int] | None = None,
        attempt: int = 0,
        **values: Sequence[float | None],
    ) -> None:
        """Metrics logged by the script itself."""
        after = list(range(len(steps))) if after is None else list(after)
        self.writer(f"rank-{rank}", attempt).write(
            events.Metrics(
                rank=rank,
                through=through,
                steps=list(steps),
                times=[self.started + offset_s for offset_s in after],
                after=after,
                values={name: list(column) for name, column in values.items()},
            )
        )

    def end_script(
        self, status: int = 0, outcome: str | None = None, reason: str | None = None, *, attempt: int = 0
    ) -> None:
        """The supervisor's last word with what the script exited with, then the guard's."""
        outcome = outcome or ("failed" if status else "completed")
        code = int(outcome == "failed")
        self.writer("supervisor", attempt).write(
            events.RunEnded(outcome=outcome, exit_code=code, attempt=attempt, script_status=status)
        )
        self.end(outcome, code, reason)
