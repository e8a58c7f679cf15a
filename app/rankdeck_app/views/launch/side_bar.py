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
from rankdeck_app.views.launch.devices import DevicesSection
from rankdeck_app.views.launch.footer import LaunchFooter
from rankdeck_app.views.launch.model import ModelSection
from rankdeck_app.views.launch.strategy import StrategySection


class LaunchView(SideBarView):
    """`launch_requested` when the button is pressed, `preset_picked` with a card; its parts have signals of
    their own.
    """

    launch_requested = Signal()
    preset_picked = Signal(object)

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
        self.model = ModelSection(theme, draft, presets, self.preset_picked.emit)
        self.strategy = StrategySection(theme, draft)
        header = self.add_section("Devices", self.devices).header
        for tool in self.devices.tools:
            header.tools.addWidget(tool)
        self.add_section("Model", self.model)
        self.add_section("Strategy", self.strategy)
        self.footer = LaunchFooter(theme, plan, self.launch_requested.emit, launch_keys)
        self.set_footer(self.footer)

    def save_state(self) -> dict[str, Any]:
        return super().save_state() | {"more": self.model.more_button.isChecked()}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        self.model.more_button.setChecked(bool(state.get("more")))
