"""A run's directory as the engine would write it, for readers: every line goes through the real writer or
encoder, the lock is a real lock. Nothing trains.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankdeck import events, run_dir
from rankdeck.config import RunConfig, from_dict
from rankdeck.config.script import ScriptConfig
from rankdeck.run_dir import EventWriter, RunDir

MIB = 2**20


def device_infos(
    num_devices: int, kind: str = "virtual", total_bytes: int | None = None
) -> list[events.DeviceInfo]:
    return [
        events.DeviceInfo(
            index=index,
            name=f"Virtual {index}" if kind == "virtual" else "NVIDIA H100 80GB HBM3",
            kind=kind,
            uuid=None if kind == "virtual" else f"GPU-{index:08x}",
            total_bytes=total_bytes,
        )
        for index in range(num_devices)
    ]


class WrittenRun:
    """A run being written. Its lock is held until `end` or `lose`."""

    def __init__(self, runs: Path, name: str = "gpt-dp", config: Mapping[str, Any] | None = None) -> None:
        hidden = run_dir.create_run_dir(
            runs, self._config(runs, name, config or {}), environment={"title": name}
        )
        path = run_dir.final_path(hidden)
        hidden.path.rename(path)
        self.dir = RunDir(path)
        self.started = time.time()
        self._lock = os.open(path / "guard.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._writers: dict[tuple[str, int], EventWriter] = {}

    def _config(self, runs: Path, name: str, config: Mapping[str, Any]) -> RunConfig | ScriptConfig:
        tables = {"name": name, "model": {"use": "mlp"}, "data": {"use": "digits"}, **config}
        return from_dict(tables, folder=runs.parent)

    def configure(self, strategy: str, attempt: int = 0, **options: object) -> None:
        """What the attempt was asked to train with; of a later one in a file of its own."""
        tables = {**self.dir.config().to_dict(), "strategy": {"use": strategy, **options}}
        name = f"config.{attempt}.toml" if attempt else "config.toml"
        (self.path / name).write_text(from_dict(tables, folder=self.path.parent).to_toml(), encoding="utf-8")

    @property
    def path(self) -> Path:
        return self.dir.path

    def writer(self, name: str, attempt: int = 0) -> EventWriter:
        key = (name, attempt)
        if key not in self._writers:
            self._writers[key] = self.dir.writer(name, attempt)
        return self._writers[key]

    def start(
        self,
        world_size: int = 1,
        devices: Sequence[events.DeviceInfo] | None = None,
        *,
        steps: int = 100,
        strategy: str = "dp",
        attempt: int = 0,
        pace: str = "real",
        cores: int | None = None,
    ) -> None:
        self.writer("supervisor", attempt).write(
            events.RunStarted(
                run=self.dir.name,
                attempt=attempt,
                strategy=strategy,
                options={},
                world_size=world_size,
                devices=list(devices or device_infos(1)),
                steps=steps,
                global_batch=32,
                started=self.started,
                pace=pace,
                cores=cores,
            )
        )

    def write_steps(
        self,
        rank: int,
        first: int,
        losses: Sequence[float | None] | None,
        *,
        count: float = 16.0,
        attempt: int = 0,
        step_s: float = 0.01,
    ) -> None:
        """One line of consecutive steps; `losses` are means, None for a rank that reports no loss."""
        num_steps = 1 if losses is None else len(losses)
        sums = None if losses is None else [None if loss is None else loss * count for loss in losses]
        self.writer(f"rank-{rank}", attempt).write(
            events.Steps(
                rank=rank,
                first=first,
                loss_sum=sums,
                count=None if losses is None else [count] * num_steps,
                lr=[1e-3] * num_steps,
                samples=[16] * num_steps,
                step_s=[step_s] * num_steps,
                ended=[self.started + step_s * (first + index) for index in range(num_steps)],
            )
        )

    def write_memory(
        self, rank: int, step: int, by_kind: Mapping[int, Mapping[str, int]], *, attempt: int = 0
    ) -> None:
        """A sampled step: the peak of each device by kind."""
        self.writer(f"rank-{rank}", attempt).write(
            events.Memory(
                rank=rank,
                step=step,
                source=events.MEASURED_IN_REHEARSAL,
                devices=[
                    events.DeviceMemory(
                        device=device,
                        live_bytes=sum(kinds.values()) // 2,
                        peak_bytes=sum(kinds.values()),
                        peak_by_kind=dict(kinds),
                    )
                    for device, kinds in by_kind.items()
                ],
            )
        )

    def end(self, outcome: str = "completed", exit_code: int = 0, reason: str | None = None) -> None:
        """The guard's last word, then the lock goes."""
        self.write_exit_record(outcome, exit_code, reason)
        self.lose()

    def write_exit_record(self, outcome: str, exit_code: int = 0, reason: str | None = None) -> None:
        word = {"outcome": outcome, "exit_code": exit_code, "ended": time.time(), "reason": reason}
        (self.path / "end.json").write_text(json.dumps(word), encoding="utf-8")

    def lose(self) -> None:
        """Everything of the run dies at once."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def write_backdated(path: Path, lines: Iterable[tuple[float, events.Event]]) -> None:
    """Appends events as if they had been written at the given Unix times; the file must be new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for seq, (t, event) in enumerate(lines):
            event.seq, event.t = seq, t
            file.write(events.encode(event))
