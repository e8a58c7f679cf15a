"""Interpreters that are really started: Rankdeck's own, one without torch, one that crashes."""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankdeck.config.interpreters import ChosenPython
from rankdeck.doctor.lines import CheckLine, Verdict
from rankdeck.doctor.python import check_python

NO_DRIVER = Path("/proc/nothing")


def single_row(rows: Iterable[CheckLine]) -> CheckLine:
    (line,) = rows
    return line


def write_program(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o700)
    return path


def python_with_torch(folder: Path, torch: str) -> Path:
    """An interpreter whose torch is this source."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text(torch)
    return write_program(folder / "python", f'PYTHONPATH="{folder}" exec "{sys.executable}" "$@"')


def test_rankdecks_python_is_shown_with_versions_and_paths() -> None:
    import torch

    line = single_row(check_python("python", ChosenPython(Path(sys.executable), "--python"), NO_DRIVER))
    assert line.verdict is Verdict.OK and torch.__version__ in line.finding
    assert f"{sys.executable} (--python)" in line.evidence
    assert any(text.startswith("numpy ") and "imported in" in text for text in line.evidence)


def test_an_interpreter_without_torch_gets_an_install_command(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare/bin/python"
    line = single_row(check_python("python", ChosenPython(python, ".venv")))
    assert line.verdict is Verdict.FAILED and line.command == f"{python} -m pip install torch"
    assert "import torch: ModuleNotFoundError: No module named 'torch'" in line.evidence


@pytest.mark.parametrize(
    ("lines", "finding"),
    [
        (["kill -SEGV $$"], "exited with status -11"),
        (["echo hello", "exit 3"], "exited with status 3"),
        (['echo "[]"'], "exited with status 0"),
    ],
)
def test_an_interpreter_without_output_fails(tmp_path: Path, lines: list[str], finding: str) -> None:
    line = single_row(
        check_python("python", ChosenPython(write_program(tmp_path / "python", *lines), "--python"))
    )
    assert line.verdict is Verdict.FAILED and finding in line.finding


def test_a_missing_interpreter_fails(tmp_path: Path) -> None:
    line = single_row(check_python("python", ChosenPython(tmp_path / "none", "--python")))
    assert line.verdict is Verdict.FAILED and "No such file" in line.finding


TORCH = """
import sys, types, warnings
__version__ = "2.99"
version = types.SimpleNamespace(cuda=%(cuda)r, hip=None)
def _available():
    warnings.warn("The NVIDIA driver on your system is too old")
    return %(gpus)d > 0
cuda = types.SimpleNamespace(is_available=_available, device_count=lambda: %(gpus)d)
def zeros(n):
    raise RuntimeError("Numpy is not available") if %(deaf)r else NotImplementedError
distributed = types.ModuleType("torch.distributed")
distributed.is_available = distributed.is_gloo_available = lambda: %(gloo)r
distributed.is_nccl_available = lambda: True
sys.modules["torch.distributed"] = distributed
zeros = (lambda n: types.SimpleNamespace(numpy=lambda: 0)) if not %(deaf)r else zeros
"""


@pytest.mark.parametrize(
    ("torch", "has_driver", "verdict", "finding"),
    [
        ({"cuda": "13.0", "gpus": 2}, True, Verdict.OK, "sees 2 GPUs"),
        ({"cuda": "13.0"}, True, Verdict.FAILED, "cannot use any GPU"),
        ({"cuda": None}, True, Verdict.FAILED, "without CUDA"),
        ({"cuda": None}, False, Verdict.OK, "no GPU driver"),
        ({"gloo": False}, False, Verdict.FAILED, "without gloo"),
        ({"deaf": True}, False, Verdict.WARNING, "numpy does not work"),
    ],
)
def test_torch_builds_that_do_not_fit_the_machine_are_found(
    tmp_path: Path, torch: dict[str, object], has_driver: bool, verdict: Verdict, finding: str
) -> None:
    """Builds that this machine has not: what a torch answers is written down."""
    facts = {"cuda": None, "gpus": 0, "gloo": True, "deaf": False} | torch
    python = python_with_torch(tmp_path / "place", TORCH % facts)
    driver = tmp_path if has_driver else NO_DRIVER
    line = single_row(check_python("python", ChosenPython(python, "--python"), driver))
    assert line.verdict is verdict and finding in line.finding, line
    assert "The NVIDIA driver on your system is too old" in line.evidence


def test_gpus_hidden_by_a_variable_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"cuda": "13.0", "gpus": 0, "gloo": True, "deaf": False}
    python = python_with_torch(tmp_path / "place", TORCH % facts)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    line = single_row(check_python("python", ChosenPython(python, "--python"), tmp_path))
    assert (line.verdict, line.command) == (Verdict.WARNING, "unset CUDA_VISIBLE_DEVICES")
