"""The examples of a page run, one after the other, as a person would type them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tree import CHECKOUT


def test_the_examples_of_the_python_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (CHECKOUT / "docs/python.md").read_text(), re.M | re.S)
    assert len(blocks) >= 5
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/python.md, example {number + 1}", "exec"), names)
    said = capsys.readouterr().out
    assert "completed " in said and "does not divide into 2 equal parts" in said
    assert "torch.Size([10, 256])" in said
