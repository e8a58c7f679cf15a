"""RUN CONFIGURATION: the sections and the footer put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import Signal

from rankdeck.config.presets import PresetCard
from rankdeck_app.shell.side_bar import SideBarView
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.devices import DevicesSection, Usage
from rankdeck_app.views.launch.footer import LaunchFooter
from rankdeck_app.views.launch.model import ModelSection
from rankdeck_app.views.launch.strategy import StrategySection


class LaunchView(SideBarView):
    """`launch_requested` when the button is pressed, `preset_picked` with a card, `strategy_explained` with a
    strategy's name, `devices_opened` when somebody wants to see all about the GPUs, `plan_opened` when the
    estimate is clicked.
    """

    launch_requested = Signal()
    preset_picked = Signal(object)
    strategy_explained = Signal(str)
    devices_opened = Signal()
    plan_opened = Signal()

    def __init__(
        self,
        theme: Theme,
        draft: Draft,
        gpus: Gpus,
        presets: Sequence[PresetCard],
        plan: DraftPlan,
        launch_keys: Callable[[], str],
    ) -> None:
        super().__init__(theme)
        self.devices = DevicesSection(theme, draft, gpus)
        self.devices.opened.connect(self.devices_opened)
        self.model = ModelSection(theme, draft, presets, self.preset_picked.emit)
        self.strategy = StrategySection(theme, draft)
        self.strategy.list.explained.connect(self.strategy_explained)
        header = self.add_section("Devices", self.devices).header
        for tool in self.devices.tools:
            header.tools.addWidget(tool)
        self.add_section("Model", self.model)
        self.add_section("Strategy", self.strategy)
        self.footer = LaunchFooter(theme, plan, self.launch_requested.emit, launch_keys)
        self.footer.estimate.opened.connect(self.plan_opened)
        self.set_footer(self.footer)

    def show_usage(self, kind: str, usage: Usage) -> None:
        self.devices.set_usage(kind, usage)

    def save_state(self) -> dict[str, Any]:
        return super().save_state() | {"more": self.model.more_button.isChecked()}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        self.model.more_button.setChecked(bool(state.get("more")))
