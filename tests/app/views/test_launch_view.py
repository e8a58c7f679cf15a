"""The side bar: forms made from the schema, devices, strategies, and a button that says why it is off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject, Qt
from pytestqt.qtbot import QtBot

from rankdeck.base.errors import Problem
from rankdeck.config import presets
from rankdeck.config.catalog import STRATEGIES
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.footer import LaunchFooter
from rankdeck_app.views.launch.host_devices import HostDevices
from rankdeck_app.views.launch.side_bar import ModelSection, StrategySection
from rankdeck_app.widgets.controls import ClampedLabel
from rankdeck_app.widgets.form import Field
from tests.helpers import device_lines
from tests.helpers.device_lines import GIB, feed_machine
from tests.helpers.fake_plan import idle_plan
from tests.helpers.own_scripts import launch_view

TEXT = """\
[model]
use = "gpt"
args = { layers = 2 }

[train]
global_batch = 32

[strategy]
use = "dp"

[devices]
use = "cpu:4"
"""


@pytest.fixture
def theme(qtbot: QtBot) -> Theme:
    return Theme()


@pytest.fixture
def draft(qtbot: QtBot, tmp_path: Path) -> Iterator[Draft]:
    draft = Draft(tmp_path / "draft.json", tmp_path)
    draft.replace(TEXT, folder=tmp_path, stem="gpt", origin="gpt-dp")
    yield draft
    draft.close()


@pytest.fixture
def gpus(qtbot: QtBot, tmp_path: Path) -> Iterator[Gpus]:
    parent = QObject()
    gpus = Gpus(Engine(tmp_path / "launch", parent), parent)
    yield gpus
    gpus.close()


# Devices


@pytest.fixture
def devices(qtbot: QtBot, theme: Theme, draft: Draft, gpus: Gpus) -> Iterator[HostDevices]:
    view = launch_view(theme, draft, gpus, [], str)
    qtbot.addWidget(view)
    view.show()
    yield view.devices.local_devices


def devices_use(draft: Draft) -> object:
    return draft.value(("devices", "use"))


def test_without_a_gpu_rehearsal_is_offered_with_a_reason(devices: HostDevices, gpus: Gpus) -> None:
    gpus.set_unavailable("No NVIDIA driver found.")
    assert devices.rehearsal_button.isChecked() and not devices.gpu_button.isEnabled()
    assert devices.reason_label.isVisible() and devices.reason_label.text() == "No NVIDIA driver found"
    assert [card.accessibleName() for card in devices.grid.cards] == [
        f"Virtual {index}" for index in range(4)
    ]
    assert not devices.all_button.isVisible() and devices.stepper.isVisible()


def test_the_stepper_counts_from_1_to_16_by_button_and_key(
    qtbot: QtBot, devices: HostDevices, draft: Draft
) -> None:
    qtbot.mouseClick(devices.stepper.increase_button, Qt.MouseButton.LeftButton)
    assert devices_use(draft) == "cpu:5"
    for _ in range(20):
        qtbot.keyClick(devices.stepper.line_edit, Qt.Key.Key_Up)
    assert devices_use(draft) == "cpu:16" and not devices.stepper.increase_button.isEnabled()
    for _ in range(20):
        qtbot.keyClick(devices.stepper.line_edit, Qt.Key.Key_Down)
    assert devices_use(draft) == "cpu:1" and not devices.stepper.decrease_button.isEnabled()
    devices.stepper.line_edit.selectAll()
    qtbot.keyClicks(devices.stepper.line_edit, "12")
    assert devices_use(draft) == "cpu:12" and len(devices.grid.cards) == 12


def test_cards_have_two_columns_and_chips_four(devices: HostDevices, draft: Draft) -> None:
    draft.set_value(("devices", "use"), "cpu:8")
    assert {card.height() for card in devices.grid.cards} == {46}
    draft.set_value(("devices", "use"), "cpu:9")
    devices.grid.layout().activate()  # type: ignore[union-attr]
    assert {card.height() for card in devices.grid.cards} == {36}


def test_cards_are_blank_until_a_run_uses_the_devices(devices: HostDevices) -> None:
    assert {card.accessibleDescription() for card in devices.grid.cards} == {""}
    devices.set_usage("virtual", {0: (3 << 20, 1.0, True), 1: (1 << 20, 0.3, False)})
    described = [card.accessibleDescription() for card in devices.grid.cards]
    assert described == ["3.0 MiB in use", "1.0 MiB in use", "", ""]
    devices.set_usage("gpu", {0: (3 << 20, 1.0, True)})
    assert {card.accessibleDescription() for card in devices.grid.cards} == {""}


def test_gpus_are_selected_singly_all_free_or_none(
    qtbot: QtBot, devices: HostDevices, draft: Draft, gpus: Gpus
) -> None:
    feed_machine(gpus, 4, busy=(1,))
    qtbot.mouseClick(devices.gpu_button, Qt.MouseButton.LeftButton)
    assert devices_use(draft) == "gpu:all" and devices.summary_label.text() == "4 of 4 ·"
    qtbot.mouseClick(devices.grid.cards[2], Qt.MouseButton.LeftButton)
    assert devices_use(draft) == "gpu:0,1,3"
    qtbot.mouseClick(devices.free_button, Qt.MouseButton.LeftButton)
    assert devices_use(draft) == "gpu:0,2,3"
    qtbot.mouseClick(devices.none_button, Qt.MouseButton.LeftButton)
    assert (
        devices.gpu_button.isChecked() and devices.summary_label.text() == "0 of 4 ·" and draft.config is None
    )
    qtbot.keyClick(devices.grid.cards[1], Qt.Key.Key_Space)
    assert devices_use(draft) == "gpu:1" and draft.config is not None
    assert "used by python 1 GiB" in devices.grid.cards[1].accessibleDescription()


def test_switching_to_rehearsal_and_back_keeps_the_gpus(
    qtbot: QtBot, devices: HostDevices, draft: Draft, gpus: Gpus
) -> None:
    feed_machine(gpus, 2)
    draft.set_value(("devices", "use"), "gpu:1")
    qtbot.mouseClick(devices.rehearsal_button, Qt.MouseButton.LeftButton)
    assert devices_use(draft) == "cpu:4"
    qtbot.mouseClick(devices.gpu_button, Qt.MouseButton.LeftButton)
    assert devices_use(draft) == "gpu:1"


def card_descriptions(devices: HostDevices) -> list[str]:
    return [card.accessibleDescription() for card in devices.grid.cards]


def test_cards_show_readings_and_who_uses_the_gpu(devices: HostDevices, gpus: Gpus, draft: Draft) -> None:
    feed_machine(gpus, 8, busy=(1,))
    draft.set_value(("devices", "use"), "gpu:all")
    assert card_descriptions(devices)[0] == "17.0 GiB in use, 91%, 64°C, 512 W"
    assert card_descriptions(devices)[1].endswith("used by python 1 GiB")
    foreign = device_lines.ProcessUse(9, None, 3 * GIB, foreign=True)
    gpus.add_line(device_lines.processes({"GPU-0002": [foreign]}))
    gpus.update()
    assert card_descriptions(devices)[2].endswith("used by outside this namespace 3 GiB")
    gpus.add_line(device_lines.processes({"GPU-0003": [foreign]}, run="/runs/20260101-000000-gpt-dp-00aa"))
    gpus.update()
    assert "used by" not in card_descriptions(devices)[3], "the person's own run is nobody else"
    assert "In use by run 20260101-000000-gpt-dp-00aa" in devices.grid.cards[3].toolTip()


def test_a_lost_gpu_shows_the_time_and_cannot_be_selected(
    qtbot: QtBot, devices: HostDevices, gpus: Gpus, draft: Draft
) -> None:
    feed_machine(gpus, 4)
    draft.set_value(("devices", "use"), "gpu:0")
    gpus.add_line(device_lines.notice("lost", "GPU-0002"))
    card = devices.grid.cards[2]
    assert card.accessibleDescription().startswith("lost ") and "GiB" not in card.accessibleDescription()
    assert not card.isEnabled()
    qtbot.mouseClick(devices.all_button, Qt.MouseButton.LeftButton)
    assert devices_use(draft) == "gpu:0,1,3"
    gpus.add_line(device_lines.notice("back", "GPU-0002"))
    assert card.isEnabled() and "lost" not in card.accessibleDescription()


def test_stale_readings_are_marked_and_unsupported_ones_omitted(
    devices: HostDevices, gpus: Gpus, draft: Draft
) -> None:
    feed_machine(gpus, 2)
    draft.set_value(("devices", "use"), "gpu:all")
    stale = device_lines.Reading(17 * GIB, "stale", age_s=9.0)
    rows = [device_lines.DeviceReadings("GPU-0000", {"used_bytes": stale})]
    gpus.add_line(device_lines.SampleLine(t=0.0, devices=rows))
    gpus.add_line(device_lines.sample("GPU-0001", {"power_w": "unsupported", "temperature_c": "error"}))
    gpus.update()
    assert "old readings" in card_descriptions(devices)[0]
    assert card_descriptions(devices)[1] == "18.0 GiB in use, 91%", "what is not known is not 0 W"


def test_one_mig_instance_can_be_selected(
    qtbot: QtBot, devices: HostDevices, gpus: Gpus, draft: Draft
) -> None:
    split = device_lines.gpu(1, mig=True)
    instances = [device_lines.mig_instance(1, index, split) for index in range(2)]
    gpus.add_line(device_lines.devices(device_lines.gpu(0), split, *instances))
    gpus.update()
    draft.set_value(("devices", "use"), "gpu:all")
    names = [card.accessibleName() for card in devices.grid.cards]
    assert names == ["GPU 0", "GPU 1", "GPU 1.0", "GPU 1.1"]
    assert [card.isChecked() for card in devices.grid.cards] == [True, False, False, False]
    assert not devices.grid.cards[1].isEnabled()
    qtbot.mouseClick(devices.grid.cards[3], Qt.MouseButton.LeftButton)
    assert devices_use(draft) == f"gpu:{instances[1].uuid}" and draft.config is not None
    qtbot.mouseClick(devices.grid.cards[0], Qt.MouseButton.LeftButton)
    assert devices_use(draft) == "gpu:0"


def test_simulated_devices_are_labelled(devices: HostDevices, gpus: Gpus, draft: Draft) -> None:
    feed_machine(gpus, 16, simulated=True)
    draft.set_value(("devices", "use"), "gpu:all")
    assert devices.reason_label.isVisible() and devices.reason_label.text() == "simulated devices"
    assert {card.height() for card in devices.grid.cards} == {36}
    draft.set_value(("devices", "use"), "auto")
    assert devices.rehearsal_button.isChecked(), "auto takes no simulated device"


# Model


@pytest.fixture
def model(qtbot: QtBot, theme: Theme, draft: Draft) -> ModelSection:
    section = ModelSection(theme, draft, presets.list_presets(), lambda _preset: None)
    qtbot.addWidget(section)
    section.show()
    return section


def test_the_form_follows_the_schema_of_the_spec(model: ModelSection, draft: Draft) -> None:
    assert ("model", "args", "heads") in model.main_form.fields
    draft.choose(("model",), "resnet")
    assert ("model", "args", "heads") not in model.main_form.fields
    assert ("model", "args", "depth") in model.main_form.fields and (
        "model",
        "args",
        "classes",
    ) in model.more_form.fields


def test_typed_values_reach_the_draft_and_mistakes_are_marked(
    qtbot: QtBot, model: ModelSection, draft: Draft
) -> None:
    field = model.main_form.fields[("train", "global_batch")]
    field.editor.setFocus()
    field.editor.selectAll()  # type: ignore[attr-defined]
    qtbot.keyClicks(field.editor, "64")
    assert draft.value(("train", "global_batch")) == 64 and field.editor.property("invalid") == "false"
    qtbot.keyClicks(field.editor, "x")
    assert draft.value(("train", "global_batch")) == "64x" and field.editor.property("invalid") == "true"
    assert "whole number" in field.editor.toolTip()


def test_an_emptied_field_returns_to_its_default(qtbot: QtBot, model: ModelSection, draft: Draft) -> None:
    field = model.main_form.fields[("train", "global_batch")]
    field.editor.clear()  # type: ignore[attr-defined]
    field.editor.setText("1")  # type: ignore[attr-defined]
    qtbot.keyClick(field.editor, Qt.Key.Key_Backspace)
    assert draft.value(("train", "global_batch")) is None
    assert draft.config is not None and draft.config.train.global_batch == 32


def test_a_user_model_can_be_typed(qtbot: QtBot, model: ModelSection, draft: Draft, tmp_path: Path) -> None:
    editor = model.main_form.fields[("model", "use")].editor
    line = editor.lineEdit()  # type: ignore[attr-defined]
    line.selectAll()
    qtbot.keyClicks(line, "mine.py:build")
    assert draft.value(("model", "use")) == "mine.py:build"
    assert draft.config is not None and draft.config.code_folders() == [tmp_path]


def test_unsupported_options_have_no_field(model: ModelSection) -> None:
    keys = {key for form in (model.main_form, model.more_form) for key in form.fields}
    assert not keys & {("train", "compile"), ("train", "checkpoint_every"), ("launch", "max_restarts")}
    precision = model.main_form.fields[("train", "precision")].editor
    assert [precision.itemText(i) for i in range(precision.count())] == ["fp32", "fp64", "bf16"]  # type: ignore[attr-defined]


def test_the_check_option_is_in_the_more_form(model: ModelSection, draft: Draft) -> None:
    field = model.more_form.fields[("train", "verify")]
    assert [field.editor.itemText(i) for i in range(field.editor.count())] == ["auto", "off", "full"]  # type: ignore[attr-defined]
    assert "same steps on one device" in field.editor.toolTip()


def test_more_creates_and_shows_the_remaining_fields(qtbot: QtBot, model: ModelSection) -> None:
    steps, before = model.main_form.fields[("train", "steps")], len(model.findChildren(Field))
    assert before == len(model.main_form.fields), "nothing is made that nobody sees"
    edge = steps.x()
    qtbot.keyClick(model.more_button, Qt.Key.Key_Space)
    assert model.more_form.isVisible() and model.more_button.text() == "Less"
    assert len(model.findChildren(Field)) == before + len(model.more_form.fields) and steps.x() == edge
    model.more_button.setFocus()
    qtbot.keyClick(model.more_button, Qt.Key.Key_Tab)
    assert model.more_form.isAncestorOf(model.focusWidget()), "Tab goes down the form"
    qtbot.keyClick(model.more_button, Qt.Key.Key_Space)
    assert not model.more_form.isVisible() and model.more_button.text() == "More"


def test_the_preset_box_shows_the_origin_of_the_draft(model: ModelSection, draft: Draft) -> None:
    names = [model.preset_box.itemText(index) for index in range(model.preset_box.count())]
    assert (
        names == [card.name for card in presets.list_presets()] and model.preset_box.currentText() == "gpt-dp"
    )


# Strategy


def test_an_arrow_key_chooses_a_strategy_and_shows_its_options(
    qtbot: QtBot, theme: Theme, draft: Draft
) -> None:
    section = StrategySection(theme, draft)
    qtbot.addWidget(section)
    section.show()
    assert ("strategy", "parallel_loss") in section.options.fields
    qtbot.keyClick(section.list, Qt.Key.Key_Down)
    assert draft.value(("strategy", "use")) == "ddp"
    assert ("strategy", "bucket_mb") in section.options.fields
    with qtbot.waitSignal(section.list.details_requested) as explained:
        qtbot.keyClick(section.list, Qt.Key.Key_Return)
    assert explained.args == ["ddp"]


@pytest.mark.parametrize("num_devices", [2, 3, 4, 6])
def test_a_new_mesh_fits_the_selected_devices(theme: Theme, draft: Draft, num_devices: int) -> None:
    section = StrategySection(theme, draft)
    draft.set_values({("devices", "use"): f"cpu:{num_devices}", ("train", "global_batch"): 12 * num_devices})
    section.list.setCurrentRow(list(STRATEGIES).index("hybrid"))
    assert draft.config is not None, draft.problems
    assert ("strategy", "tensor") in section.options.fields


# The footer


def test_the_footer_shows_the_problem_and_its_fix(qtbot: QtBot, theme: Theme, draft: Draft) -> None:
    pressed: list[int] = []
    footer = LaunchFooter(theme, idle_plan(draft), lambda: pressed.append(1), lambda: "Ctrl+F5")
    qtbot.addWidget(footer)
    assert footer.estimate.text() == "No estimate yet" and "Ctrl+F5" in footer.launch_button.text()
    footer.resize(216, 300)
    footer.show()
    message = "train.steps is wrong, for a reason that takes more than the two lines of an estimate."
    problem = Problem("wrong", message, path="train.steps", advice="Use 5.", cure={"train.steps": 5})
    footer.show_state(problem, location_text="Show the Field")
    label = footer.blocker_banner.message
    assert label.isVisible() and label.text() == f"{message} Use 5." and not footer.estimate.isVisible()
    assert footer.launch_button.toolTip() == f"{message} Use 5."
    assert label.height() > 3 * label.fontMetrics().lineSpacing()
    assert (
        footer.blocker_banner.fix_button.text() == "Set steps = 5"
        and footer.blocker_banner.location_button.text() == "Show the Field"
    )
    with qtbot.waitSignal(footer.fix_requested) as fixed:
        qtbot.mouseClick(footer.blocker_banner.fix_button, Qt.MouseButton.LeftButton)
    with qtbot.waitSignal(footer.location_requested) as request:
        qtbot.keyClick(footer.blocker_banner.location_button, Qt.Key.Key_Space)
    assert fixed.args == [{"train.steps": 5}] and request.args == [problem]
    footer.show_state(None)
    assert not footer.blocker_banner.isVisible() and footer.estimate.isVisible()
    qtbot.mouseClick(footer.launch_button, Qt.MouseButton.LeftButton)
    assert pressed == [1]


def test_a_long_text_is_elided_and_complete_in_the_tooltip(qtbot: QtBot) -> None:
    label = ClampedLabel(2)
    qtbot.addWidget(label)
    label.resize(200, 40)
    label.show()
    text = "train.global_batch = 33 does not divide into 4 equal parts. " * 3
    label.show_text(text)
    assert label.text().endswith("…") and label.toolTip() == text
    assert label.height() <= 2 * label.fontMetrics().lineSpacing() + 2
    label.show_text("Short.")
    assert label.height() <= label.fontMetrics().lineSpacing() + 2 and not label.toolTip()


def test_every_control_has_a_name_and_a_tooltip(qtbot: QtBot, theme: Theme, draft: Draft, gpus: Gpus) -> None:
    from PySide6.QtWidgets import QAbstractButton, QComboBox, QLineEdit

    feed_machine(gpus, 4)
    view = launch_view(theme, draft, gpus, presets.list_presets(), lambda: "Ctrl+F5")
    qtbot.addWidget(view)
    for kind in (QAbstractButton, QComboBox, QLineEdit):
        for widget in view.findChildren(kind):
            named = widget.accessibleName() or (isinstance(widget, QAbstractButton) and widget.text())
            assert named, f"{widget} has no name"


def test_every_strategy_has_an_icon_and_a_short_hint() -> None:
    from rankdeck_app.theme.icons import CODEPOINTS

    for card in STRATEGIES.values():
        assert card.icon in CODEPOINTS, f"{card.name}: add {card.icon} to CODEPOINTS"
        assert 1 <= len(card.hint.split()) <= 4
    icons = [card.icon for card in STRATEGIES.values()]
    assert len(set(icons)) == len(icons) and not {"rocket", "table"} & set(icons), "Launch's and Runs'"
