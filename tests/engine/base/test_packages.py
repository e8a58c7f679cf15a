"""What is installed is read from what installers write down, and what a lock file names from the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankdeck.base import packages


def install(folder: Path, name: str, version: str, *requirements: str) -> None:
    """As an installer leaves it."""
    dist_info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    dist_info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (dist_info / "METADATA").write_text(
        "\n".join([*lines, *(f"Requires-Dist: {requirement}" for requirement in requirements)]) + "\n"
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages before all others."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_installed_versions_are_keyed_by_canonical_name(site: Path) -> None:
    install(site, "Odd_Name.of--it", "1.5+cu130")
    install(site, "numpy", "0.0.1")
    (site / "empty-1.0.dist-info").mkdir()
    (site / "bytes-1.0.dist-info").mkdir()
    (site / "bytes-1.0.dist-info" / "METADATA").write_bytes(b"Name: bytes\nVersion: \xff\n")
    versions = packages.installed_versions()
    assert (versions["odd-name-of-it"], versions["numpy"]) == ("1.5", "0.0.1")
    assert {"torch", "pytest"} <= versions.keys() and not {"empty", "bytes", ""} & versions.keys()
    assert (packages.package_version("numpy"), packages.package_version("no-such-package")) == ("0.0.1", None)


@pytest.mark.parametrize(
    ("requirements", "there", "expected"),
    [
        (['nvidia-nccl-cu12==2.27.5; platform_system == "Linux"'], {"nvidia-nccl-cu12": "2.27.5"}, "2.27.5"),
        (
            ["nvidia_nccl_cu13 (==2.28.9)"],
            {"nvidia-nccl-cu13": "2.29.1", "nvidia-nccl-cu12": "2.1"},
            "2.29.1",
        ),
        (["numpy", "nvidia-nccl-cu12==2.27.5"], {}, None),
        (["numpy"], {"nvidia-nccl-cu12": "2.27.5"}, None),
        ([], {"nvidia-nccl-cu12": "2.27.5"}, None),
    ],
)
def test_the_nccl_version_is_that_of_the_wheel_torch_requires(
    site: Path, requirements: list[str], there: dict[str, str], expected: str | None
) -> None:
    install(site, "torch", "9.9.0", *requirements)
    for name, version in there.items():
        install(site, name, version)
    assert packages.nccl_version() == expected


_PINNED = 'name = "Some_Package"\nversion = "1.0"\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "uv.lock",
            f'version = 1\n[[package]]\n{_PINNED}[[package]]\nname = "own"\nsource = {{ editable = "." }}\n',
        ),
        ("pylock.toml", f'lock-version = "1.0"\n[[packages]]\n{_PINNED}[[packages]]\nname = "of-git"\n'),
        ("poetry.lock", f'[[package]]\n{_PINNED}files = []\n[metadata]\nlock-version = "2.1"\n'),
        ("pdm.lock", f'[metadata]\nstrategy = []\n[[package]]\n{_PINNED}groups = ["default"]\n'),
    ],
)
def test_a_lock_file_pins_packages_with_a_version(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    lock = packages.find_lock_file(tmp_path)
    assert lock == tmp_path / name and packages.pinned_packages(lock) == {"some-package"}


def test_the_first_regular_lock_file_is_used(tmp_path: Path) -> None:
    assert packages.find_lock_file(tmp_path) is None and packages.find_lock_file(tmp_path / "gone") is None
    (tmp_path / "uv.lock").mkdir()
    os.mkfifo(tmp_path / "pylock.toml")
    (tmp_path / "poetry.lock").touch()
    (tmp_path / "pdm.lock").touch()
    assert packages.find_lock_file(tmp_path) == tmp_path / "poetry.lock"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[[package",
        b"package = 3\npackages = 'all'\n",
        b"package = [1, {}, {name = 3, version = '1'}, {name = 'a'}]\n",
        b"x = " + b"[" * 2000 + b"]" * 2000,
        bytes((4 << 20) + 1),
    ],
    ids=["empty", "no text", "cut", "no list", "no packages", "deep", "large"],
)
def test_a_damaged_lock_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "uv.lock").write_bytes(data)
    with pytest.raises((OSError, ValueError)):
        packages.pinned_packages(tmp_path / "uv.lock")
