"""Which GPUs this machine has, as `rankdeck devices --json` tells.

A process of its own asks the driver, never the app: a lost GPU has crashed NVML, and calls can block.

Asked once at start and again when somebody wants it. Until the first answer nothing is known; without a GPU
`reason` says why in one line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, Signal

from rankdeck_app.state.engine_process import Engine, Question, parse_problems

NO_GPU = "No NVIDIA driver found"


@dataclass(frozen=True)
class Gpu:
    """One reading of one GPU; None is unknown. `busy_bytes` belong to processes of others."""

    index: int
    uuid: str
    name: str
    total_bytes: int | None = None
    used_bytes: int | None = None
    busy_bytes: int = 0
    busy_by: str = ""

    @property
    def is_free(self) -> bool:
        return self.busy_bytes == 0 and not self.busy_by


class Gpus(QObject):
    """`known` is False until the first answer; without a GPU `devices` is empty and `reason` says why."""

    changed = Signal()

    def __init__(self, engine: Engine, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._engine = engine
        self._question: Question | None = None
        self.known = False
        self.devices: list[Gpu] = []
        self.reason: str | None = None

    def ask(self) -> None:
        """Ask the engine; `changed` follows. A question that is under way is not asked twice."""
        if self._question is None:
            self._question = self._engine.ask(["devices", "--json"])
            self._question.answered.connect(self._answered)

    def _answered(self, exit_code: int, out: str, err: str) -> None:
        self._question = None
        devices = parse_devices_answer(out)
        problems = parse_problems(out) or parse_problems(err)
        self.set_answer(devices, problems[0].message if problems else None)

    def set_answer(self, devices: list[Gpu], reason: str | None = None) -> None:
        self.known = True
        self.devices = devices
        self.reason = None if devices else (reason or NO_GPU).rstrip(".")
        self.changed.emit()


def parse_devices_answer(out: str) -> list[Gpu]:
    """The GPUs in the answer, in nvidia-smi's order; empty when it is no answer."""
    try:
        rows = json.loads(out)
    except ValueError:
        return []
    if isinstance(rows, dict):
        rows = rows.get("devices", [])
    gpus = [_gpu(row) for row in rows if isinstance(row, dict) and row.get("kind", "gpu") == "gpu"]
    return sorted((gpu for gpu in gpus if gpu is not None), key=lambda gpu: gpu.index)


def _gpu(row: dict[str, Any]) -> Gpu | None:
    if not isinstance(row.get("index"), int):
        return None
    processes = [item for item in row.get("processes") or [] if isinstance(item, dict)]
    holders = [str(item.get("name") or item.get("pid")) for item in processes]
    return Gpu(
        index=row["index"],
        uuid=str(row.get("uuid") or ""),
        name=str(row.get("name") or f"GPU {row['index']}"),
        total_bytes=row.get("total_bytes"),
        used_bytes=row.get("used_bytes"),
        busy_bytes=sum(item.get("used_bytes") or 0 for item in processes),
        busy_by=", ".join(dict.fromkeys(holders)),
    )
