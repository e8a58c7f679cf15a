"""What a configuration names as code is a file with something in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankdeck.base.errors import ModelError
from rankdeck.config import from_dict
from rankdeck.config.consent import check_paths


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "does not exist"),
        ("folder", "is not a file"),
        ("pipe", "is not a file"),
        ("empty", "is empty"),
    ],
)
def test_a_code_path_that_is_no_file_is_refused_without_blocking(
    tmp_path: Path, kind: str, message: str
) -> None:
    code = tmp_path / "mine.py"
    {"folder": code.mkdir, "empty": code.touch, "pipe": lambda: os.mkfifo(code)}.get(kind, lambda: None)()
    config = from_dict({"model": {"use": "mine.py:model"}}, folder=tmp_path)
    with pytest.raises(ModelError, match=message):
        check_paths(config)
    if kind == "empty":
        code.write_text("def model(): ...")
        check_paths(config)
