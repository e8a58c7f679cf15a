"""Code that travels: what of a folder goes along, and that it is the same on the other host."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.config import RunConfig, from_dict, load
from rankdeck.remote import snapshot
from rankdeck.run_dir import RunDir, add_to_index, create_run_dir, final_path
from tests.fuzz.watching import without_rights

_DAY_S = 86_400


def write_config(folder: Path, use: str = "net.py:make") -> RunConfig:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.py").write_text("def make(): ...\n")
    return from_dict({"model": {"use": use}}, folder=folder)


def archive_names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        return packed.getnames()


def test_equal_code_is_unpacked_once(tmp_path: Path) -> None:
    config = write_config(tmp_path / "job")
    (tmp_path / "job" / "part").mkdir()
    (tmp_path / "job" / "part" / "more.py").write_text("x = 1\n")
    archive = snapshot.pack(config)
    assert archive == snapshot.pack(config)
    there = snapshot.unpack(archive)
    assert there == snapshot.unpack(archive) and len([*there.parent.iterdir()]) == 1
    assert (there / "part" / "more.py").read_text() == "x = 1\n"
    loaded = load(there / snapshot.CONFIG_NAME)
    assert loaded.model.use == f"{there}/net.py:make"
    assert loaded.train == config.train
    (tmp_path / "job" / "net.py").write_text("def make(): return 1\n")
    assert snapshot.unpack(snapshot.pack(config)) != there


def test_a_git_folder_is_packed_without_ignored_and_large_files(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    for name in ("words.txt", "secret.env", "big.bin"):
        (tmp_path / name).write_text(name)
    (tmp_path / "big.bin").write_bytes(bytes(snapshot.MAX_CODE_FILE_BYTES + 1))
    (tmp_path / ".gitignore").write_text("*.env\n")
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert archive_names(snapshot.pack(config)) == [snapshot.CONFIG_NAME, ".gitignore", "net.py", "words.txt"]


def test_without_git_only_python_files_and_the_lock_file_are_packed(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    for name in (
        "data.csv",
        ".hidden/a.py",
        "venv/a.py",
        "env/pyvenv.cfg",
        "env/a.py",
        "runs/x/a.py",
        "b/c.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert archive_names(snapshot.pack(config)) == [snapshot.CONFIG_NAME, "b/c.py", "net.py"]
    assert archive_names(snapshot.pack(from_dict({}, folder=tmp_path))) == [snapshot.CONFIG_NAME]
    for name in ("pdm.lock", "b/uv.lock", "poetry.lock"):
        (tmp_path / name).write_text(name)
    assert archive_names(snapshot.pack(config)) == [snapshot.CONFIG_NAME, "b/c.py", "net.py", "poetry.lock"]


def test_large_code_and_code_outside_the_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="outside the configuration's folder"):
        snapshot.pack(write_config(tmp_path / "job", f"{tmp_path}/other.py:make"))
    monkeypatch.setattr(snapshot, "MAX_ARCHIVE_BYTES", 10)
    with pytest.raises(ConfigError, match="is larger than 10 B"):
        snapshot.pack(write_config(tmp_path / "job"))


@pytest.mark.parametrize("name", ["../out", "/tmp/out-of-place", "a/../../out"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path, name: str) -> None:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    before = sorted(tmp_path.rglob("*"))
    try:
        snapshot.unpack(gzip.compress(written.getvalue()))
    except tarfile.TarError:
        pass
    new_paths = [path for path in tmp_path.rglob("*") if path not in before]
    assert not [path for path in new_paths if path.name.startswith("out") and "code" not in path.parts]
    assert not Path("/tmp/out-of-place").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", gzip.compress(b"no archive either"), gzip.compress(b"x" * 999)[:20]],
    ids=["empty", "no gzip", "no tar", "cut off"],  # gzip holds the second at which it was made
)
def test_an_invalid_archive_is_refused(data: bytes) -> None:
    with pytest.raises((OSError, EOFError, tarfile.TarError)):
        snapshot.unpack(data)


def unpack_code(folder: Path, name: str) -> Path:
    """Code with a file of this name in it."""
    config = write_config(folder / name)
    (folder / name / f"{name}.py").touch()
    return snapshot.unpack(snapshot.pack(config))


def set_age(path: Path, days: float) -> None:
    at_s = time.time() - days * _DAY_S
    os.utime(path, (at_s, at_s), follow_symlinks=False)


def create_run(code: Path, runs: Path, name: str) -> RunDir:
    """What is left of a run that was begun with it."""
    hidden = create_run_dir(runs, load(code / snapshot.CONFIG_NAME), {}, name)
    run = RunDir(hidden.path.rename(final_path(hidden)))
    add_to_index(run)
    return run


def test_unused_code_is_removed_after_a_month(tmp_path: Path) -> None:
    runs = tmp_path / "some" / "runs"
    named = of_run, of_resumed, of_renamed = [unpack_code(tmp_path, name) for name in ("one", "two", "three")]
    of_removed, unused, fresh, again = [
        unpack_code(tmp_path, name) for name in ("four", "five", "six", "seven")
    ]
    create_run(of_run, runs, "a")
    resumed = load(of_resumed / snapshot.CONFIG_NAME)
    (create_run(of_run, runs, "b").path / "config.1.toml").write_text(resumed.to_toml())
    create_run(of_renamed, runs, "c").path.rename(runs / "another name")
    shutil.rmtree(create_run(of_removed, runs, "d").path)
    for code in (*named, of_removed, unused, again):
        set_age(code, 31)
    set_age(fresh, 29)
    assert snapshot.unpack(snapshot.pack(write_config(tmp_path / "seven"))) == again
    new = unpack_code(tmp_path, "new")
    assert set(new.parent.iterdir()) == {*named, fresh, again, new}
    assert load(of_renamed / snapshot.CONFIG_NAME).model.use == f"{of_renamed}/net.py:make"
    assert all(time.time() - code.stat().st_mtime < _DAY_S for code in named), "each is looked for again"


def test_cleanup_keeps_other_files_and_follows_no_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs.py").touch()
    code = unpack_code(tmp_path, "one")
    (code / "link").symlink_to(outside)
    folder, number = code.parent, "0123456789abcde"
    half, notes, file, link = (folder / name for name in (".abcd_123", "notes", number + "f", number + "0"))
    half.mkdir()
    notes.mkdir()
    file.touch()
    link.symlink_to(outside)
    future = unpack_code(tmp_path, "ahead")
    for path in (code, half, notes, file, link, outside):
        set_age(path, 400)
    set_age(future, -400)
    new = unpack_code(tmp_path, "new")
    assert set(folder.iterdir()) == {notes, file, link, future, new}
    assert [path.name for path in outside.iterdir()] == ["theirs.py"]
    assert future.stat().st_mtime <= time.time(), "it would stay for ever"


def test_code_that_cannot_be_removed_is_moved_aside(tmp_path: Path) -> None:
    config, code = write_config(tmp_path / "one"), unpack_code(tmp_path, "one")
    closed = code / "part"
    closed.mkdir()
    (closed / "kept.py").touch()
    closed.chmod(0o500)
    set_age(code, 31)
    with without_rights():
        new = unpack_code(tmp_path, "new")
    assert new.is_dir() and not code.exists()
    (left,) = [path for path in new.parent.iterdir() if path != new]
    assert (left / "part" / "kept.py").exists()
    assert snapshot.unpack(snapshot.pack(config)) == code and (code / "one.py").exists()
    (left / "part").chmod(0o700)


def test_cleanup_removes_nothing_after_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unused = unpack_code(tmp_path, "one")
    set_age(unused, 31)
    monkeypatch.setattr(snapshot, "_CLEANUP_TIMEOUT_S", 0.0)
    new = unpack_code(tmp_path, "new")
    assert set(new.parent.iterdir()) == {unused, new}


@pytest.mark.parametrize("mode", [0o000, 0o700])
def test_cleanup_removes_nothing_if_runs_cannot_be_read(tmp_path: Path, mode: int) -> None:
    unused, named = unpack_code(tmp_path, "one"), unpack_code(tmp_path, "two")
    runs = create_run(named, tmp_path / "runs of another", "a").path.parent
    for code in (unused, named):
        set_age(code, 31)
    runs.chmod(mode)
    with without_rights():
        new = unpack_code(tmp_path, "new")
    runs.chmod(0o700)
    assert set(new.parent.iterdir()) == {named, new} | ({unused} if mode == 0 else set())


def test_unpacking_into_a_broken_folder_raises(tmp_path: Path) -> None:
    folder = unpack_code(tmp_path, "one").parent
    folder.rename(tmp_path / "elsewhere")
    folder.touch()
    with pytest.raises(OSError):
        unpack_code(tmp_path, "two")
