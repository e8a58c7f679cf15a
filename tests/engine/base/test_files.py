from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankdeck.base.files import (
    MAX_TOML_BYTES,
    find_write_error,
    read_toml,
    replace_file,
    write_atomic,
    write_private,
)


def test_an_atomic_write_makes_folders_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.toml"
    write_atomic(path, "one")
    write_atomic(path, "two")
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.mkdir()
    with pytest.raises(OSError):
        write_atomic(path, "text")
    assert list(tmp_path.iterdir()) == [path]


def test_bytes_and_the_output_of_a_function_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "c.bin"
    replace_file(path, b"\x00\x01", sync=True)
    assert path.read_bytes() == b"\x00\x01"
    write_atomic(path, lambda target: target.write_text("filled"))
    assert path.read_text() == "filled"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_function_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    write_atomic(path, "old")

    def fill(target: Path) -> None:
        target.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        write_atomic(path, fill)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_made_only_if_allowed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "none" / "c.toml", "text", make_folder=False)
    assert not list(tmp_path.iterdir())


def test_links_are_followed_and_pipes_written_into(tmp_path: Path) -> None:
    link, target, pipe = tmp_path / "link", tmp_path / "target", tmp_path / "pipe"
    link.symlink_to(target)
    write_atomic(link, "text")
    assert link.is_symlink() and target.read_text() == "text"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(pipe, b"bytes")
        assert os.read(reader, 100) == b"bytes"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_replace_file_replaces_links_and_pipes(tmp_path: Path) -> None:
    target, folder = tmp_path / "target", tmp_path / "folder"
    folder.mkdir()
    target.write_text("theirs")
    for name in ("link", f".link.{os.getpid()}.new"):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    for name in ("link", "pipe"):
        replace_file(folder / name, "ours")
        assert (folder / name).lstat().st_mode & 0o170000 == 0o100000
        assert (folder / name).read_text() == "ours"
    assert target.read_text() == "theirs" and len(list(folder.iterdir())) == 2


def test_surrogate_escapes_are_written_as_their_bytes(tmp_path: Path) -> None:
    write_atomic(tmp_path / "page", os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "page").read_bytes() == b"caf\xe9"


def test_toml_is_read_with_a_byte_order_mark_and_errors_raise(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_toml(path) == {"a": 1}
    path.write_bytes(b"a = \xff")
    with pytest.raises(ValueError):
        read_toml(path)
    path.write_text("a = ")
    with pytest.raises(ValueError):
        read_toml(path)
    path.write_text("#" * (MAX_TOML_BYTES + 1))
    with pytest.raises(OSError):
        read_toml(path)
    with pytest.raises(OSError):
        read_toml(tmp_path / "none.toml")


def test_an_open_reader_keeps_the_old_contents(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    write_atomic(file, "old")
    with file.open() as reader:
        write_atomic(file, "new contents")
        assert reader.read() == "old"
    assert file.read_text() == "new contents"


@pytest.mark.parametrize("sync", [True, False])
def test_bytes_are_synced_before_the_rename_if_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    names: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: names.append(Path(f"/proc/self/fd/{handle}").readlink().name)
    )
    replace_file(tmp_path / "c.toml", "one", sync=sync)
    assert names == ([f".c.toml.{os.getpid()}.new"] if sync else [])


def test_the_write_error_of_a_folder_is_the_one_of_the_system(tmp_path: Path) -> None:
    assert [find_write_error(tmp_path), find_write_error(tmp_path / "gone")] == ["", ""]
    assert not list(tmp_path.iterdir())
    code = (
        "import resource, signal, sys; from pathlib import Path; "
        "from rankdeck.base.files import find_write_error; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9)); "
        "print(find_write_error(Path(sys.argv[1])))"
    )
    process = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True)
    assert process.stdout.decode().strip() == os.strerror(errno.EFBIG)


def test_a_private_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "draft.json"
    write_private(file, "one")
    file.chmod(0o644)
    write_private(file, "two")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("two", 0o600)
    assert [*file.parent.iterdir()] == [file]
