"""What stands where in the form: the strategies in sight, and the one that was chosen."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QRect

from rankdeck_app.composition import App
from rankdeck_app.views.launch.side_bar import LaunchView
from tests.helpers.app_window import process_events, wait_for
from tests.helpers.device_lines import feed_machine


def find_launch_view(app: App) -> LaunchView:
    view = app.window.show_activity("launch")
    assert isinstance(view, LaunchView)
    process_events()
    return view


def is_fully_visible(view: LaunchView, rect: QRect) -> bool:
    """Whether a part of the list of strategies is seen whole."""
    page = view.scroll_area.viewport()
    box = QRect(view.strategy.list.viewport().mapTo(page, rect.topLeft()), rect.size())
    return page.rect().contains(box)


def test_all_strategies_are_visible_in_a_default_window(app: App) -> None:
    app.window.resize(1440, 900)
    view = find_launch_view(app)
    assert is_fully_visible(view, view.strategy.list.viewport().rect())


def test_a_strategy_chosen_elsewhere_is_scrolled_into_view(app: App) -> None:
    app.window.resize(1280, 560)
    view = find_launch_view(app)
    draft = app.session.draft
    for use in ("pipeline", "tensor", "single"):
        app.window.editor.open("welcome:").setFocus()
        draft.choose(("strategy",), use)
        process_events()
        assert is_fully_visible(view, view.strategy.list.selected_rect), use
        view.model.more_button.setFocus()
        before = view.scroll_area.verticalScrollBar().value()
        draft.choose(("strategy",), "dp" if before else "pipeline-async")
        process_events()
        assert view.scroll_area.verticalScrollBar().value() == before, "it moves under nobody's hands"


@pytest.mark.parametrize(("is_simulated", "use"), [(False, "auto"), (True, "gpu:0,1")])
def test_the_first_draft_uses_gpus_once_they_are_found(app: App, is_simulated: bool, use: str) -> None:
    """Also where the driver did not answer at first."""
    gpus, draft = app.session.gpus, app.session.draft
    wait_for(lambda: gpus.is_known, 30, "what the driver says")
    assert draft.value(("devices", "use")) == "cpu:4"
    feed_machine(gpus, 2, simulated=is_simulated)
    assert draft.value(("devices", "use")) == use
    here = find_launch_view(app).devices.local_devices
    assert here.gpu_button.isChecked() and not here.rehearsal_button.isChecked()
