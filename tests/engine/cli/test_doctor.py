"""`rankdeck doctor` as a person, a program and an impatient person call it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankdeck.doctor.lines import ROW_TITLES
from tests.helpers.cli import rankdeck, rankdeck_in_process, start_rankdeck
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

BAD_INTERFACE = {"GLOO_SOCKET_IFNAME": "none7"}


def fake_torch(does: str, folder: Path) -> dict[str, str]:
    """An environment in which `import torch` does this first."""
    (folder / "torch.py").write_text(does)
    return {"PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}"}


def test_json_has_one_line_per_check_and_a_first_and_last_line() -> None:
    done = rankdeck("doctor", "threads", "interface", "--json", env=BAD_INTERFACE, exit_code=3)
    first, *rows, last = done.lines
    assert first["kind"] == "checks" and {row["name"] for row in first["rows"]} == {"threads", "interface"}
    assert {row["name"]: row["kind"] for row in rows} == {"threads": "check", "interface": "check"}
    assert (last["kind"], last["broken"]) == ("done", ["interface"])
    wrong = next(row for row in rows if row["name"] == "interface")
    assert (wrong["verdict"], wrong["command"]) == ("broken", "unset GLOO_SOCKET_IFNAME")
    assert wrong["phrases"][wrong["finding"]]["arguments"] == {"variables": "GLOO_SOCKET_IFNAME"}
    assert done.err == ""


def test_text_output_has_verdict_evidence_and_fix() -> None:
    done = rankdeck_in_process("doctor", "interface", env=BAD_INTERFACE, exit_code=3)
    finding = "No interface that is up matches GLOO_SOCKET_IFNAME."
    assert done.out.startswith(f"broken         Network interface       {finding}")
    assert "\n broken: interface" not in done.out and "broken: interface\n" in done.out
    for text in (
        "GLOO_SOCKET_IFNAME=none7",
        "Unset the variable",
        "unset GLOO_SOCKET_IFNAME",
        "0 of 1 checks are good",
    ):
        assert text in done.out
    assert "1 of 1 checks are good" in rankdeck_in_process("doctor", "interface", exit_code=0).out


def test_an_unknown_check_is_refused_with_a_suggestion() -> None:
    done = rankdeck_in_process("doctor", "glo", exit_code=2)
    assert done.err == 'There is no check called "glo".\nDid you mean "gloo"?\n'
    assert (
        rankdeck_in_process("doctor", "--json", "nothing", exit_code=2).json["problems"][0]["code"]
        == "unknown-check"
    )
    assert rankdeck_in_process("doctor", "files", "--python", "/nowhere", exit_code=2).err.startswith(
        "--python: there is"
    )


def test_doctor_reports_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    env = fake_torch("raise ImportError('libtorch.so is not there')", tmp_path)
    done = rankdeck("doctor", "python", "gloo", "--python", sys.executable, "--json", env=env, exit_code=3)
    rows = {row["name"]: row for row in done.lines[1:-1]}
    assert rows["python"]["finding"] == "torch cannot be imported."
    assert "import torch: ImportError: libtorch.so is not there" in rows["python"]["evidence"]
    assert rows["gloo"]["verdict"] == "not-tried"
    assert "Traceback" not in done.out + done.err


def test_doctor_does_not_import_torch_itself() -> None:
    script = (
        "import sys\n"
        "from rankdeck.cli.app import run\n"
        "run(['doctor', 'files'])\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True, capture_output=True, timeout=60)


def test_ctrl_c_ends_doctor_and_its_child_processes(tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    env = fake_torch(f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(600)", tmp_path)
    with start_rankdeck("doctor", "python", "--python", sys.executable, env=env) as doctor:
        wait_until(mark.exists)
        doctor.send_signal(signal.SIGINT)
        _, err = doctor.communicate(timeout=30)
    assert (doctor.returncode, err) == (130, "")


@pytest.mark.slow
def test_every_check_is_reported_and_no_file_is_left(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    done = rankdeck("doctor", "--json", "--python", sys.executable, cwd=here)
    first, *rows, last = done.lines
    names = [row["name"] for row in rows]
    assert sorted(names) == sorted(row["name"] for row in first["rows"])
    assert set(ROW_TITLES) - set(names) == {"own-python"}
    assert done.exit_code == (3 if last["broken"] else 0)
    assert all(row["finding"] and row["verdict"] for row in rows)
    assert next(row for row in rows if row["name"] == "gloo")["verdict"] == "good", rows
    assert list(here.iterdir()) == []


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="a driver is here")
def test_doctor_is_suggested_for_machine_errors_only() -> None:
    advice = "Check the machine with: rankdeck doctor"
    assert advice in rankdeck_in_process("train", "digits-mlp", "--devices", "gpu:0", exit_code=3).err
    problem = rankdeck_in_process("devices", "--json", exit_code=3).json["problems"][0]
    assert advice in problem["advice"] and problem["templates"]["advice.one"].endswith("{command}")
    assert "doctor" not in rankdeck_in_process("train", "digits-mlp", "--devices", "cpu:0", exit_code=2).err


def test_a_local_environment_is_checked_only_if_it_is_named(tmp_path: Path) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\ntouch {tmp_path}/canary\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = fake_torch("raise ImportError('it takes seconds')", tmp_path)
    for named, is_run in (([], False), (["--python", str(python)], True)):
        rankdeck("doctor", "python", *named, cwd=tmp_path, env=env, exit_code=3)
        assert (tmp_path / "canary").exists() == is_run
