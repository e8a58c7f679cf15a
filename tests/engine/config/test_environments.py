"""Interpreters are listed with their versions, from files alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankdeck.config.environments import Interpreter, describe_interpreter, find_interpreters


def python_at(prefix: Path, *names: str) -> Path:
    """A stand-in for an interpreter: what is started is a program that fails, so that nobody starts it."""
    (prefix / "bin").mkdir(parents=True, exist_ok=True)
    for name in names or ("python",):
        (prefix / "bin" / name).write_bytes(b"\x7fELF")
        (prefix / "bin" / name).chmod(0o755)
    return prefix / "bin" / (names[0] if names else "python")


def venv_at(prefix: Path, *, system: bool = False) -> Path:
    """A real environment of this Python, without packages."""
    command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks"]
    subprocess.run([*command, *(["--system-site-packages"] if system else []), prefix], check=True)
    return prefix / "bin" / "python"


def torch_in(site_packages: Path, version: str) -> None:
    (site_packages / f"torch-{version}.dist-info").mkdir(parents=True)


def site(prefix: Path) -> Path:
    return prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment variables of a person without anything."""
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "PATH": ""}


def interpreters_by_name(folder: Path, environ: dict[str, str]) -> dict[str, Interpreter]:
    """By name, without what this machine has outside of the test's folder."""
    here = (item for item in find_interpreters(folder, environ) if item.python.is_relative_to(folder.parent))
    return {item.name: item for item in here}


def test_python_and_torch_versions_of_a_real_environment_are_read(
    tmp_path: Path, home: dict[str, str]
) -> None:
    python = venv_at(tmp_path / "project" / ".venv")
    torch_in(site(tmp_path / "project" / ".venv"), "2.4.1+cu121")
    (only,) = interpreters_by_name(tmp_path / "project", home).values()
    version = ".".join(map(str, sys.version_info[:3]))
    assert only == Interpreter(python, "venv", ".venv", version, "2.4.1+cu121")
    assert only.format_versions() == f"Python {version}, torch 2.4.1+cu121"
    assert not only.is_rankdeck


def test_system_torch_counts_only_with_system_site_packages(tmp_path: Path, home: dict[str, str]) -> None:
    base = tmp_path / "base"
    torch_in(base / "lib" / "python3.12" / "site-packages", "2.7.0")
    for name, shared in (("with", "true"), ("without", "false")):
        python_at(tmp_path / "project" / name)
        (tmp_path / "project" / name / "pyvenv.cfg").write_text(
            f"home = {base / 'bin'}\ninclude-system-site-packages = {shared}\nversion_info = 3.12.4.final.0\n"
        )
    listed = interpreters_by_name(tmp_path / "project", home)
    assert (listed["with"].python_version, listed["with"].torch_version) == ("3.12.4", "2.7.0")
    assert (listed["without"].python_version, listed["without"].torch_version) == ("3.12.4", None)
    assert listed["without"].format_versions() == "Python 3.12.4, no torch found"


def test_torch_in_a_folder_from_a_pth_file_is_found(tmp_path: Path, home: dict[str, str]) -> None:
    prefix = tmp_path / "project" / "venv"
    python_at(prefix)
    (prefix / "pyvenv.cfg").write_text("version = 3.10.2\n")
    packages = prefix / "lib" / "python3.10" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "more.pth").write_text(f"import site\n# a remark\n{tmp_path / 'elsewhere'}\n")
    torch_in(tmp_path / "elsewhere", "2.5.0")
    assert describe_interpreter(prefix / "bin" / "python", home).torch_version == "2.5.0"


def test_environments_of_all_tools_are_found_once_and_in_order(tmp_path: Path, home: dict[str, str]) -> None:
    person, project = Path(home["HOME"]), tmp_path / "project"
    for name in (".venv", "venv", "other"):
        python_at(project / name)
        (project / name / "pyvenv.cfg").write_text("version = 3.11.1\n")
    python_at(project / "scripts")  # a folder with bin/python, and no environment
    conda = person / "miniconda3"
    nlp, far = conda / "envs" / "nlp", tmp_path / "far"
    for prefix, record in ((conda, "3.12.2"), (nlp, "3.9.18"), (far, "3.8.1")):
        python_at(prefix)
        (prefix / "conda-meta").mkdir()
        (prefix / "conda-meta" / f"python-{record}-h955ad1f_0.json").touch()
        (prefix / "conda-meta" / "python-dateutil-2.9-py39_1.json").touch()
    (conda / "condabin").mkdir()
    (person / ".conda").mkdir()
    (person / ".conda" / "environments.txt").write_text(f"{conda}\n{far}\n")
    pyenv = person / ".pyenv" / "versions" / "3.10.4"
    python_at(pyenv, "python3.10")
    (pyenv / "bin" / "python").symlink_to("python3.10")
    header = pyenv / "include" / "python3.10" / "patchlevel.h"
    header.parent.mkdir(parents=True)
    header.write_text('#define PY_VERSION             "3.10.4"\n')
    uv = person / ".local" / "share" / "uv" / "python" / "cpython-3.13.0-linux-x86_64-gnu"
    python_at(uv, "python3.13")
    (uv / "bin" / "python3").symlink_to("python3.13")
    python_at(tmp_path / "usr", "python3.7")
    (tmp_path / "usr" / "bin" / "python3").symlink_to("python3.7")
    shim = tmp_path / "shims" / "python3"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexit 1\n")
    shim.chmod(0o755)
    home["PATH"] = f"{tmp_path / 'shims'}:{tmp_path / 'usr' / 'bin'}:relative:{pyenv / 'bin'}"
    environments = [
        (item.kind, item.name, item.python_version) for item in interpreters_by_name(project, home).values()
    ]
    assert environments == [
        ("venv", ".venv", "3.11.1"),
        ("venv", "venv", "3.11.1"),
        ("venv", "other", "3.11.1"),
        ("conda", "base", "3.12.2"),
        ("conda", "far", "3.8.1"),
        ("conda", "nlp", "3.9.18"),
        ("pyenv", "3.10.4", "3.10.4"),
        ("uv", "cpython-3.13.0-linux-x86_64-gnu", "3.13"),
        ("path", str(tmp_path / "usr" / "bin" / "python3"), "3.7"),
    ]


def test_an_unreadable_environment_has_unknown_versions(tmp_path: Path, home: dict[str, str]) -> None:
    python = python_at(tmp_path / "odd")
    (tmp_path / "odd" / "pyvenv.cfg").write_bytes(b"\xff\xfe\x00 = \n===\n")
    assert describe_interpreter(python, home) == Interpreter(python, "venv", "odd", None, None)
    assert describe_interpreter(python, home).format_versions() == "Python of unknown version, no torch found"


def test_the_interpreter_of_rankdeck_is_listed_and_marked(tmp_path: Path, home: dict[str, str]) -> None:
    assert [item.is_rankdeck for item in find_interpreters(tmp_path, home)][-1]
