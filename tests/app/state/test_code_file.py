"""A file that a traceback names is shown, or it is said why not: it may be anything now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankdeck_app.state.code_file import MAX_FILE_BYTES, read_code


def test_text_is_read_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_bytes(b"\xef\xbb\xbfx = '\xc3\xa4'\r\n")
    assert read_code(path).text == "x = 'ä'\r\n" and not read_code(path).problem


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("gone", "does not exist"),
        ("folder", "is a folder"),
        ("pipe", "is not a regular file"),
        ("device", "is not a regular file"),
        ("huge", "larger than the limit of 2.0 MiB"),
        ("binary", "is not a text file: it contains NUL bytes"),
        ("latin", "is not UTF-8 text (line 2)"),
        ("locked", "cannot be read: Permission denied"),
    ],
)
def test_unreadable_code_files_are_explained(tmp_path: Path, what: str, message: str) -> None:
    path = tmp_path / "model.py"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)  # nobody ever writes: a plain open would wait for good
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "huge":
        path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    elif what == "binary":
        path.write_bytes(b"\x7fELF\0\0")
    elif what == "latin":
        path.write_bytes(b"x = 1\n# caf\xe9\n")
    elif what == "locked":
        path.write_text("x = 1")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    code = read_code(path)
    assert message in code.problem and str(path) in code.problem and not code.text
