"""Creates the state behind the views, once per window: configuration, runs, trust and GPUs.

This module imports part of the engine, which takes 0.1 s, so the session is created after the first paint.
`close` ends all threads, leaves no half-started launch behind, and does not stop any run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import QObject

from rankdeck.base import home
from rankdeck.config import presets as engine_presets
from rankdeck.config.catalog import StrategySpec
from rankdeck.config.presets import Preset
from rankdeck_app.settings import Settings
from rankdeck_app.shell.services import Services
from rankdeck_app.state.device_choice import DeviceChoice, default_devices
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.draft_race import DraftRace
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.fixes import FixPlans
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.host_gpus import HostGpus
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.state.plan_process import Planner
from rankdeck_app.state.predictions import Predictions
from rankdeck_app.state.problem_list import ProblemList
from rankdeck_app.state.runs import Runs
from rankdeck_app.state.script_draft import NO_GPU_DEVICES, ScriptDraft
from rankdeck_app.state.script_folder import ScriptFolder
from rankdeck_app.state.state_file import CardLayouts
from rankdeck_app.state.step_movement import StepMovement
from rankdeck_app.state.toml_writer import KeyPath
from rankdeck_app.state.trust import Trust
from rankdeck_app.state.workspace import Workspace

FIRST_PRESET = "gpt-dp"
_FALLBACK_TOML = '[model]\nuse = "mlp"\n\n[data]\nuse = "digits"\n'


class Session:
    """State shared by the views and controllers of one window. Creating it writes nothing to disk."""

    def __init__(self, services: Services, parent: QObject) -> None:
        settings, state_folder = services.settings, services.state_folder
        self.io_thread = disk = services.io_thread
        self.workspace = Workspace(
            state_folder / "workspace.json",
            settings,
            folder=services.workspace,
            runs=services.runs,
            parent=parent,
            io_thread=disk,
        )
        self.engine = Engine(state_folder / "launch", parent, io_thread=disk)
        _bind_python(settings, self.engine)
        self.trust = Trust(home.config_dir() / "trusted.toml")
        self.gpus = Gpus(self.engine, parent)
        self.runs = Runs(self.workspace.runs_folder, parent)
        self.workspace.changed.connect(lambda: self.runs.set_folder(self.workspace.runs_folder))
        self.draft = Draft(
            state_folder / "draft.json",
            self.workspace.folder,
            parent,
            io_thread=disk,
            # A lambda, because hosts is created later.
            count_devices=lambda config: self.hosts.count_devices(config),
        )
        self.script = ScriptDraft(state_folder / "script.json", self.workspace.folder, parent, io_thread=disk)
        self.workspace.changed.connect(lambda: self.script.set_folder(self.workspace.folder))
        self.scripts = ScriptFolder(
            self.workspace, state_folder / "interpreters.json", parent, io_thread=disk
        )
        self.gpus.changed.connect(
            lambda: self.script.set_default_devices("gpu:all" if self.gpus.devices else NO_GPU_DEVICES)
        )
        self.layouts = CardLayouts(state_folder / "cards.json", parent, io_thread=disk)
        self.device_choice = DeviceChoice(self.draft, self.script, parent)
        self.hosts = HostGpus(self.engine, self.gpus, self.device_choice, parent)
        self.problems = ProblemList(parent)
        self.presets: Sequence[Preset] = engine_presets.list_presets()
        # Functions instead of values, because settings may change while the app runs.
        is_automatic = partial(settings.get, "plan.automatic", bool)
        timeout_s = partial(settings.get, "plan.timeout_s", float)
        planner = Planner(self.engine, self.trust, self.workspace, is_automatic, timeout_s)
        self.plan = DraftPlan(self.draft, planner, parent)
        self.target_plan = DraftPlan(self.draft, planner, parent)
        self.draft_race = DraftRace(self.draft, self.runs, parent)
        self.predictions = Predictions(planner, self.plan, parent, io_thread=disk)
        self.fix_plans = FixPlans(planner, parent)
        self.planner = planner
        self._step_movements: dict[str, StepMovement] = {}
        if not self.draft.is_restored:
            self._make_first_draft()
            self._prefer_gpus(self.draft.text)

    def start(self) -> None:
        """Start watching runs (once a second), GPUs and hosts."""
        self.runs.start()
        self.gpus.start()
        self.hosts.start()
        self.plan.start()
        self.scripts.scan()

    def step_movement(self, card: StrategySpec) -> StepMovement:
        """Return the StepMovement of the draft with the strategy `card`, created on first use and then
        shared."""
        if card.name not in self._step_movements:
            self._step_movements[card.name] = StepMovement(self.draft, self.plan.planner, card, self.plan)
        return self._step_movements[card.name]

    def use_preset(self, preset: Preset) -> None:
        """Make the preset the draft. If the preset names no devices, choose suitable ones on this machine.

        Raises:
            OSError: the preset's file cannot be read.
        """
        text = preset.path.read_text(encoding="utf-8")
        self.draft.replace(text, folder=preset.path.parent, stem=preset.name, origin=preset.name)
        changes: dict[KeyPath, object] = {("name",): None}  # the run must not be named after its preset
        if self.draft.value(("devices",)) is None:
            changes["devices", "use"] = default_devices(preset.strategy, self.gpus.devices)
        self.draft.set_values(changes)
        # Filling in the devices is not an edit of the user's.
        self.draft.is_edited = False

    def close(self) -> None:
        for step in self._step_movements.values():
            step.close()
        for closable in (
            self.plan, self.target_plan, self.draft_race, self.predictions, self.fix_plans, self.draft,
            self.layouts, self.script, self.scripts, self.hosts, self.gpus, self.engine, self.runs,
        ):  # fmt: skip
            closable.close()

    def _prefer_gpus(self, first_text: str) -> None:
        """Switch the first draft to GPUs once the driver reports any, unless the user has changed the draft's
        text from `first_text` by then.

        The draft is created before the driver answers.
        """

        def answered() -> None:
            if not self.gpus.devices:
                return
            self.gpus.changed.disconnect(answered)
            if self.draft.text == first_text:
                self.draft.set_value(("devices", "use"), default_devices("dp", self.gpus.devices))

        self.gpus.changed.connect(answered)

    def _make_first_draft(self) -> None:
        """Create the initial draft from the suggested preset."""
        preset = next((card for card in self.presets if card.name == FIRST_PRESET), None)
        try:
            if preset is not None:
                return self.use_preset(preset)
        except OSError:
            pass
        # Without the preset, start from a minimal configuration.
        return self.draft.replace(_FALLBACK_TOML, folder=self.workspace.folder, stem="")


def _bind_python(settings: Settings, engine: Engine) -> None:
    def follow(key: str) -> None:
        if key == "engine.python":
            engine.python = settings.get(key, str) or sys.executable

    settings.changed.connect(follow)
    follow("engine.python")
