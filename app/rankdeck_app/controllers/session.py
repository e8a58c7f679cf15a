"""The state behind the views, made once per window: what is configured, what runs, what is trusted.

Needs the engine's floor 1 (0.1 s to import), so it is opened after the first paint. `close` leaves no thread
and no half-started launch behind, and ends no run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject

from rankdeck.config import presets as engine_presets
from rankdeck.config.presets import PresetCard
from rankdeck_app.shell.services import Services
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.state.plan_process import Planner
from rankdeck_app.state.predictions import Predictions
from rankdeck_app.state.problem_list import ProblemList
from rankdeck_app.state.runs import Runs
from rankdeck_app.state.suggestion import default_devices
from rankdeck_app.state.trust import Trust
from rankdeck_app.state.workspace import DEFAULT_FOLDER, Workspace

FIRST_PRESET = "gpt-dp"
_FALLBACK = '[model]\nuse = "mlp"\n\n[data]\nuse = "digits"\n'


@dataclass(frozen=True)
class Session:
    """Everything that views and controllers share."""

    workspace: Workspace
    trust: Trust
    engine: Engine
    gpus: Gpus
    runs: Runs
    draft: Draft
    problems: ProblemList
    presets: Sequence[PresetCard]
    plan: DraftPlan
    elsewhere: DraftPlan
    predictions: Predictions

    def start(self) -> None:
        """Begin to look: for runs, once a second, and at GPUs, for as long as the app is up."""
        self.runs.start()
        self.gpus.ask()
        self.plan.start()

    def use_preset(self, preset: PresetCard) -> None:
        """Make the preset the configuration; where it names no devices, those that make sense here.

        Raises:
            OSError: its file cannot be read.
        """
        text = preset.path.read_text(encoding="utf-8")
        self.draft.replace(text, folder=preset.path.parent, stem=preset.name, origin=preset.name)
        if self.draft.value(("devices",)) is None:
            use = default_devices(preset.strategy, self.gpus.devices)
            self.draft.set_value(("devices", "use"), use)
        self.draft.is_edited = False

    def close(self) -> None:
        for part in (self.plan, self.elsewhere, self.predictions):
            part.close()
        self.draft.close()
        self.gpus.close()
        self.engine.close()
        self.runs.close()


def open_session(services: Services, parent: QObject) -> Session:
    """The session of one window. Nothing is created on disk."""
    folders = services.folders
    workspace = _workspace(services, parent)
    engine = Engine(folders.state / "launch", parent)
    _follow_python(services, engine)
    trust = Trust(folders.config / "trusted.toml")
    draft = Draft(folders.state / "draft.json", workspace.folder, parent)
    is_automatic = partial(services.settings.get_bool, "plan.automatic")
    planner = Planner(engine, trust, workspace, is_automatic)
    plan = DraftPlan(draft, planner, parent)
    session = Session(
        workspace=workspace,
        trust=trust,
        engine=engine,
        gpus=Gpus(engine, parent),
        runs=Runs(workspace.runs_folder, parent),
        draft=draft,
        problems=ProblemList(parent),
        presets=engine_presets.all(),
        plan=plan,
        elsewhere=DraftPlan(draft, planner, parent),
        predictions=Predictions(planner, plan, parent),
    )
    workspace.changed.connect(lambda: session.runs.set_folder(workspace.runs_folder))
    if not session.draft.is_restored:
        _begin_draft(session)
        _prefer_gpus(session, session.draft.text)
    return session


def _workspace(services: Services, parent: QObject) -> Workspace:
    """With what the command line asked for, which goes before everything that is remembered."""
    folders, settings = services.folders, services.settings
    is_default = folders.workspace == Path(DEFAULT_FOLDER).expanduser().absolute()
    named = os.environ.get("RANKDECK_RUNS") or settings.get_str("runs.dir")
    usual = Path(named).expanduser().absolute() if named else folders.workspace / "runs"
    return Workspace(
        folders.state / "workspace.json",
        settings,
        folder=None if is_default else folders.workspace,
        runs=None if folders.runs == usual else folders.runs,
        parent=parent,
    )


def _follow_python(services: Services, engine: Engine) -> None:
    def follow(key: str) -> None:
        if key == "engine.python":
            engine.python = services.settings.get_str(key) or sys.executable

    services.settings.changed.connect(follow)
    follow("engine.python")


def _prefer_gpus(session: Session, first_text: str) -> None:
    """The first draft was made before the driver answered: with GPUs it trains on them, unless it was
    changed.
    """

    def answered() -> None:
        session.gpus.changed.disconnect(answered)
        if session.gpus.devices and session.draft.text == first_text:
            session.draft.set_value(("devices", "use"), default_devices("dp", session.gpus.devices))

    session.gpus.changed.connect(answered)


def _begin_draft(session: Session) -> None:
    """The first draft of all: the suggested run."""
    preset = next((card for card in session.presets if card.name == FIRST_PRESET), None)
    try:
        if preset is not None:
            return session.use_preset(preset)
    except OSError:
        pass
    return session.draft.replace(_FALLBACK, folder=session.workspace.folder, stem="run")
