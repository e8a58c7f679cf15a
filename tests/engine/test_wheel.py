"""The wheel holds what the checkout holds, and without extras it is a headless engine."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rankdeck import __version__
from tests.helpers.checkout import CHECKOUT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    script = (
        "import os, sys; from hatchling.build import build_wheel; os.chdir(sys.argv[1]); "
        "build_wheel(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", script, str(CHECKOUT), str(folder)], check=True, timeout=120)
    return zipfile.ZipFile(next(folder.glob("rankdeck-*.whl")))


def _project_files(folder: Path, as_: str) -> set[str]:
    """Files under `folder` that belong to the project, named as the wheel names them."""
    files = [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return {f"{as_}/{file.relative_to(folder).as_posix()}" for file in files}


def test_the_wheel_has_every_file_of_both_packages_and_the_presets(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = _project_files(CHECKOUT / "engine/rankdeck", "rankdeck") | _project_files(
        CHECKOUT / "app/rankdeck_app", "rankdeck_app"
    )
    expected |= _project_files(CHECKOUT / "presets", "rankdeck/_presets")
    assert packed == expected


@pytest.mark.parametrize(
    "file",
    [
        "rankdeck/py.typed",
        "rankdeck_app/py.typed",
        "rankdeck/data/digits.py",
        "rankdeck/models/mlp.py",
        "rankdeck/_presets/digits-mlp.toml",
        "rankdeck_app/theme/fonts/codicon.ttf",
    ],
)
def test_the_wheel_holds(wheel: zipfile.ZipFile, file: str) -> None:
    assert file in wheel.namelist()


def test_only_the_app_extra_requires_qt(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    required = metadata.get_all("Requires-Dist") or []
    qt = [line for line in required if line.lower().startswith(("pyside6", "pyqtgraph"))]
    assert qt
    assert all("extra == 'app'" in line for line in qt)
    assert any(line.startswith("torch") and "extra" not in line for line in required)


def test_the_engine_runs_from_the_wheel_alone_without_qt(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    script = (
        "import sys\n"
        "from importlib import abc\n"
        "class NoQt(abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('PySide6', 'shiboken6', 'pyqtgraph'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NoQt())\n"
        "sys.path.insert(0, sys.argv.pop(1))\n"
        "from rankdeck.config import presets\n"
        "assert presets.__file__.startswith(sys.path[0]), presets.__file__\n"
        "from rankdeck.__main__ import main\n"
        "sys.argv = ['rankdeck', 'presets']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "digits-ddp" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a fresh environment that holds the wheel; what it depends on is taken from ours."""
    venv = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120)
    python = venv / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", str(wheel.filename)], check=True, timeout=120)
    [site_packages] = venv.glob("lib/python*/site-packages")
    # Packages in our folders are found; our .pth files, which lead to the checkout, are not read there.
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site_packages / "ours.pth").write_text("\n".join(ours) + "\n")
    return venv / "bin"


def _output_of(*command: str | Path, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(argument) for argument in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fresh_environment_imports_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    script = "import rankdeck, rankdeck_app; print(rankdeck.__file__); print(rankdeck_app.__file__)"
    paths = _output_of(installed / "python", "-c", script, folder=tmp_path).split()
    assert len(paths) == 2
    assert all(Path(file).is_relative_to(installed.parent) for file in paths), paths


def test_an_installed_wheel_trains_a_preset(installed: Path, tmp_path: Path) -> None:
    _output_of(installed / "rankdeck", "train", "digits-mlp", "--set", "train.steps=20", folder=tmp_path)
    summary = json.loads(_output_of(installed / "rankdeck", "show", "last", "--json", folder=tmp_path))
    assert (summary["outcome"], summary["steps"]) == ("completed", 20)
    environment = json.loads((Path(summary["path"]) / "environment.json").read_text())
    assert environment["versions"]["rankdeck"] == __version__


@pytest.mark.parametrize("command", ["rankdeck", "rankdeck-app"])
def test_both_commands_of_an_installed_wheel_print_the_version(
    installed: Path, tmp_path: Path, command: str
) -> None:
    assert _output_of(installed / command, "--version", folder=tmp_path) == f"{command} {__version__}\n"
