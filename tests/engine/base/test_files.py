from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.files import write_whole


def test_a_file_is_written_with_its_folders_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.toml"
    write_whole(path, "one")
    write_whole(path, "two")
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_a_refused_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.mkdir()
    with pytest.raises(OSError):
        write_whole(path, "text")
    assert list(tmp_path.iterdir()) == [path]
