"""The wheel holds what the checkout holds, and without extras it is a headless engine."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    script = (
        "import os, sys; from hatchling.build import build_wheel; os.chdir(sys.argv[1]); "
        "build_wheel(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", script, str(CHECKOUT), str(folder)], check=True, timeout=120)
    return zipfile.ZipFile(next(folder.glob("rankdeck-*.whl")))


def _files(folder: Path, as_: str) -> set[str]:
    """Files under `folder` that belong to the project, named as the wheel names them."""
    files = [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return {f"{as_}/{file.relative_to(folder).as_posix()}" for file in files}


def test_the_wheel_holds_every_file_of_both_packages_and_the_presets(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    wanted = _files(CHECKOUT / "engine/rankdeck", "rankdeck") | _files(
        CHECKOUT / "app/rankdeck_app", "rankdeck_app"
    )
    wanted |= _files(CHECKOUT / "presets", "rankdeck/_presets")
    assert packed == wanted


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


def test_qt_comes_with_the_app_extra_only(wheel: zipfile.ZipFile) -> None:
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
