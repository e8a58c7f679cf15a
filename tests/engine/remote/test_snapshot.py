"""Code that travels: what of a folder goes along, and that it is the same on the other host."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.config import RunConfig, from_dict, load
from rankdeck.remote import snapshot


def own(folder: Path, use: str = "net.py:make") -> RunConfig:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.py").write_text("def make(): ...\n")
    return from_dict({"model": {"use": use}}, folder=folder)


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        return packed.getnames()


def test_it_is_unpacked_once_as_it_was(tmp_path: Path) -> None:
    config = own(tmp_path / "job")
    (tmp_path / "job" / "part").mkdir()
    (tmp_path / "job" / "part" / "more.py").write_text("x = 1\n")
    archive = snapshot.pack(config)
    assert archive == snapshot.pack(config)
    there = snapshot.unpack(archive)
    assert there == snapshot.unpack(archive) and len([*there.parent.iterdir()]) == 1
    assert (there / "part" / "more.py").read_text() == "x = 1\n"
    loaded = load(there / snapshot.CONFIG)
    assert loaded.model.use == f"{there}/net.py:make"
    assert loaded.train == config.train
    (tmp_path / "job" / "net.py").write_text("def make(): return 1\n")
    assert snapshot.unpack(snapshot.pack(config)) != there


def test_of_a_folder_that_git_knows_goes_what_it_would_add(tmp_path: Path) -> None:
    config = own(tmp_path)
    for name in ("words.txt", "secret.env", "big.bin"):
        (tmp_path / name).write_text(name)
    (tmp_path / "big.bin").write_bytes(bytes(snapshot.LARGEST_FILE_BYTES + 1))
    (tmp_path / ".gitignore").write_text("*.env\n")
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert names(snapshot.pack(config)) == [snapshot.CONFIG, ".gitignore", "net.py", "words.txt"]


def test_elsewhere_goes_python_alone_and_of_the_catalogue_nothing(tmp_path: Path) -> None:
    config = own(tmp_path)
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
    assert names(snapshot.pack(config)) == [snapshot.CONFIG, "b/c.py", "net.py"]
    assert names(snapshot.pack(from_dict({}, folder=tmp_path))) == [snapshot.CONFIG]


def test_what_would_be_too_much_or_is_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="outside of the configuration's folder"):
        snapshot.pack(own(tmp_path / "job", f"{tmp_path}/other.py:make"))
    monkeypatch.setattr(snapshot, "LARGEST_BYTES", 10)
    with pytest.raises(ConfigError, match="is larger than 10 B"):
        snapshot.pack(own(tmp_path / "job"))


@pytest.mark.parametrize("name", ["../out", "/tmp/out-of-place", "a/../../out"])
def test_an_archive_writes_nowhere_else(tmp_path: Path, name: str) -> None:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    before = sorted(tmp_path.rglob("*"))
    try:
        snapshot.unpack(gzip.compress(written.getvalue()))
    except tarfile.TarError:
        pass
    made = [path for path in tmp_path.rglob("*") if path not in before]
    assert not [path for path in made if path.name.startswith("out") and "code" not in path.parts]
    assert not Path("/tmp/out-of-place").exists()


@pytest.mark.parametrize(
    "data", [b"", b"no archive", gzip.compress(b"no archive either"), gzip.compress(b"x" * 999)[:20]]
)
def test_what_is_no_archive_is_told(data: bytes) -> None:
    with pytest.raises((OSError, EOFError, tarfile.TarError)):
        snapshot.unpack(data)
