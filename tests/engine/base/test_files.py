from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankdeck.base.files import (
    LARGEST_TOML_BYTES,
    read_toml,
    refusal,
    write_own,
    write_private,
    write_whole,
)


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


def test_bytes_and_what_a_function_fills_are_written_too(tmp_path: Path) -> None:
    path = tmp_path / "c.bin"
    write_own(path, b"\x00\x01", sync=True)
    assert path.read_bytes() == b"\x00\x01"
    write_whole(path, lambda target: target.write_text("filled"))
    assert path.read_text() == "filled"
    assert list(tmp_path.iterdir()) == [path]


def test_a_fill_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    write_whole(path, "old")

    def fill(target: Path) -> None:
        target.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        write_whole(path, fill)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_made_only_where_it_may_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "c.toml", "text", make_folder=False)
    assert not list(tmp_path.iterdir())


def test_links_are_followed_and_pipes_written_into(tmp_path: Path) -> None:
    link, target, pipe = tmp_path / "link", tmp_path / "target", tmp_path / "pipe"
    link.symlink_to(target)
    write_whole(link, "text")
    assert link.is_symlink() and target.read_text() == "text"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"bytes")
        assert os.read(reader, 100) == b"bytes"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_in_a_folder_from_anywhere_links_and_pipes_are_replaced(tmp_path: Path) -> None:
    target, folder = tmp_path / "target", tmp_path / "folder"
    folder.mkdir()
    target.write_text("theirs")
    for name in ("link", f".link.{os.getpid()}.new"):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    for name in ("link", "pipe"):
        write_own(folder / name, "ours")
        assert (folder / name).lstat().st_mode & 0o170000 == 0o100000
        assert (folder / name).read_text() == "ours"
    assert target.read_text() == "theirs" and len(list(folder.iterdir())) == 2


def test_names_that_are_not_utf_8_are_written_as_they_are(tmp_path: Path) -> None:
    write_whole(tmp_path / "page", os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "page").read_bytes() == b"caf\xe9"


def test_toml_is_read_with_or_without_a_mark_and_errors_are_the_callers(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_toml(path) == {"a": 1}
    path.write_bytes(b"a = \xff")
    with pytest.raises(ValueError):
        read_toml(path)
    path.write_text("a = ")
    with pytest.raises(ValueError):
        read_toml(path)
    path.write_text("#" * (LARGEST_TOML_BYTES + 1))
    with pytest.raises(OSError):
        read_toml(path)
    with pytest.raises(OSError):
        read_toml(tmp_path / "none.toml")


def test_who_has_the_old_contents_open_keeps_them(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    write_whole(file, "old")
    with file.open() as reader:
        write_whole(file, "new contents")
        assert reader.read() == "old"
    assert file.read_text() == "new contents"


@pytest.mark.parametrize("sync", [True, False])
def test_bytes_are_on_the_disk_before_the_rename_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    names: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: names.append(Path(f"/proc/self/fd/{handle}").readlink().name)
    )
    write_own(tmp_path / "c.toml", "one", sync=sync)
    assert names == ([f".c.toml.{os.getpid()}.new"] if sync else [])


def test_a_folder_says_why_nothing_can_be_written_there(tmp_path: Path) -> None:
    assert [refusal(tmp_path), refusal(tmp_path / "gone")] == ["", ""]
    assert not list(tmp_path.iterdir())
    code = (
        "import resource, signal, sys; from pathlib import Path; from rankdeck.base.files import refusal; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9)); "
        "print(refusal(Path(sys.argv[1])))"
    )
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True)
    assert told.stdout.decode().strip() == os.strerror(errno.EFBIG)


def test_what_may_hold_secrets_is_its_owners_alone_also_where_a_file_was_there(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "draft.json"
    write_private(file, "one")
    file.chmod(0o644)
    write_private(file, "two")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("two", 0o600)
    assert [*file.parent.iterdir()] == [file]
