"""Layouts of cards come back at the next start, and a broken file costs only them."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication

from rankdeck_app.state.kept_file import CardLayouts


def test_a_layout_per_strategy_comes_back(qapp: QCoreApplication, tmp_path: Path) -> None:
    file = tmp_path / "cards.json"
    layouts = CardLayouts(file)
    layouts.keep("dp", {"hidden": ["heat"]})
    layouts.keep("ddp", {"order": ["loss"]})
    layouts.keep("ddp", {})
    layouts.close()
    again = CardLayouts(file)
    assert again.of("dp") == {"hidden": ["heat"]} and again.of("ddp") == {} and again.of("fsdp") == {}


@pytest.mark.parametrize("text", ["", "[1]", '{"dp": 3}'])
def test_a_broken_file_is_an_empty_one(qapp: QCoreApplication, tmp_path: Path, text: str) -> None:
    (tmp_path / "cards.json").write_text(text)
    assert CardLayouts(tmp_path / "cards.json").of("dp") == {}
