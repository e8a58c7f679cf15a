"""What is sent to a host is this rankdeck, whole: pip takes it, and it runs."""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import rankdeck
from rankdeck.remote import installer
from tests.helpers.checkout import CHECKOUT


def test_the_wheel_has_every_file_once_with_its_checksum() -> None:
    packed = zipfile.ZipFile(io.BytesIO(installer.build_wheel()))
    names = packed.namelist()
    assert len(names) == len(set(names)) and not [name for name in names if "__pycache__" in name]
    ours = subprocess.run(
        ["git", "ls-files", "engine/rankdeck", "presets"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    expected = {file.replace("engine/", "").replace("presets/", "rankdeck/_presets/", 1) for file in ours}
    assert expected <= set(names)
    record = packed.read(f"rankdeck-{rankdeck.__version__}.dist-info/RECORD").decode().splitlines()
    sums = {line.split(",")[0]: line.split(",")[1] for line in record}
    assert set(sums) == set(names)
    for name in names:
        digest = base64.urlsafe_b64encode(hashlib.sha256(packed.read(name)).digest()).rstrip(b"=").decode()
        assert name.endswith("/RECORD") or sums[name] == f"sha256={digest}"


def test_pip_installs_the_wheel_and_it_can_be_imported(tmp_path: Path) -> None:
    wheel = tmp_path / f"rankdeck-{rankdeck.__version__}-py3-none-any.whl"
    wheel.write_bytes(installer.build_wheel())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, tmp_path / "there", wheel], check=True, capture_output=True)
    code = (
        "import rankdeck, importlib.metadata; from rankdeck.config import presets; "
        "print(rankdeck.__file__, presets.presets_folder(), importlib.metadata.version('rankdeck'))"
    )
    output = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(tmp_path / "there")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    package = tmp_path / "there" / "rankdeck"
    assert output == [str(package / "__init__.py"), str(package / "_presets"), rankdeck.__version__]
    assert (tmp_path / "there" / "bin" / "rankdeck").is_file()
