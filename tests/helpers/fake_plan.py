"""A draft with a plan whose planner tells what a test wants; see fake_planner.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QObject

from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import FITS, PlanLine, PlannedDevice
from rankdeck_app.settings import Settings
from rankdeck_app.state import plan, step_movement
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.state.plan_process import Planner
from rankdeck_app.state.trust import Trust
from rankdeck_app.state.workspace import Workspace

GIB = 2**30
TEXT = """\
[model]
use = "mlp"
[data]
use = "digits"
[train]
global_batch = 32
[strategy]
use = "ddp"
[devices]
use = "cpu:2"
"""
FAKE_PLANNER = Path(__file__).with_name("fake_planner.py")
_QUIET_MS = 20
"""How long nobody types before the planner is asked: a test sets what it sets at once."""


def plan_line(strategy: str, total_bytes: int = GIB, **fields: Any) -> PlanLine:
    devices = [
        PlannedDevice(
            device=index, name=f"Virtual {index}", active_bytes=total_bytes, total_bytes=total_bytes
        )
        for index in range(2)
    ]
    values = {"options": {}, "label": strategy, "verdict": FITS, "devices": devices} | fields
    return PlanLine(strategy=strategy, **values)


class PlanWorld:
    """A draft, and a planner that tells what the test wants."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parent = QObject()
        self.folder, self._patch = folder, monkeypatch
        for asking in (plan, step_movement):
            monkeypatch.setattr(asking, "DEBOUNCE_MS", _QUIET_MS)
        self.draft = Draft(folder / "draft.json", folder, self.parent)
        self.draft.replace(TEXT, folder=folder, stem="mlp")
        self.engine = Engine(folder / "launch", self.parent)
        self.engine.python = str(FAKE_PLANNER)
        workspace = Workspace(
            folder / "ws.json", Settings(folder / "s.toml"), folder=folder, parent=self.parent
        )
        self.is_automatic = True
        self.trust = Trust(folder / "trusted.toml")
        self.planner = Planner(self.engine, self.trust, workspace, lambda: self.is_automatic)
        self.plan = DraftPlan(self.draft, self.planner, self.parent)
        monkeypatch.setenv("FAKE_LOG", str(folder / "log"))
        self.set_output([])

    def set_output(self, lines: list[PlanLine], then: str = "") -> None:
        file = self.folder / "lines"
        file.write_bytes(b"".join(map(plan_lines.encode, lines)))
        self._patch.setenv("FAKE_LINES", str(file))
        self._patch.setenv("FAKE_THEN", then)

    @property
    def requests(self) -> list[dict[str, Any]]:
        log = self.folder / "log"
        return [json.loads(text) for text in log.read_text().splitlines()] if log.exists() else []

    def close(self) -> None:
        self.plan.close()
        self.draft.close()
        self.engine.close()


def idle_plan(draft: Draft) -> DraftPlan:
    """A plan of the draft that asks nobody."""
    folder = draft.folder
    engine = Engine(folder / "launch", draft)
    workspace = Workspace(folder / "ws.json", Settings(folder / "s.toml"), folder=folder, parent=draft)
    return DraftPlan(draft, Planner(engine, Trust(folder / "trusted.toml"), workspace, lambda: False), draft)
