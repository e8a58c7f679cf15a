"""Layouts of cards come back at the next start, and a broken file costs only them."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication

from rankdeck_app.state.state_file import CardLayouts


def test_layouts_are_restored_per_strategy(qapp: QCoreApplication, tmp_path: Path) -> None:
    file = tmp_path / "cards.json"
    layouts = CardLayouts(file)
    layouts.set("dp", {"hidden": ["heat"]})
    layouts.set("ddp", {"order": ["loss"]})
    layouts.set("ddp", {})
    layouts.close()
    again = CardLayouts(file)
    assert again.get("dp") == {"hidden": ["heat"]} and again.get("ddp") == {} and again.get("fsdp") == {}


@pytest.mark.parametrize("text", ["", "[1]", '{"dp": 3}'])
def test_an_invalid_layout_file_is_ignored(qapp: QCoreApplication, tmp_path: Path, text: str) -> None:
    (tmp_path / "cards.json").write_text(text)
    assert CardLayouts(tmp_path / "cards.json").get("dp") == {}
