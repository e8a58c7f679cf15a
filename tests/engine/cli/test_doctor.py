"""`rankdeck doctor` as a person, a program and an impatient person call it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankdeck.doctor.lines import TITLES
from tests.helpers.cli import rankdeck, rankdeck_here, start_rankdeck
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

WRONG = {"GLOO_SOCKET_IFNAME": "none7"}


def torch_that(does: str, folder: Path) -> dict[str, str]:
    """An environment in which `import torch` does this first."""
    (folder / "torch.py").write_text(does)
    return {"PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}"}


def test_json_is_a_line_for_each_row_between_a_first_and_a_last_one() -> None:
    done = rankdeck("doctor", "threads", "interface", "--json", env=WRONG, code=3)
    first, *rows, last = done.lines
    assert first["kind"] == "checks" and {row["name"] for row in first["rows"]} == {"threads", "interface"}
    assert {row["name"]: row["kind"] for row in rows} == {"threads": "check", "interface": "check"}
    assert (last["kind"], last["broken"]) == ("done", ["interface"])
    wrong = next(row for row in rows if row["name"] == "interface")
    assert (wrong["verdict"], wrong["command"]) == ("broken", "unset GLOO_SOCKET_IFNAME")
    assert wrong["phrases"][wrong["finding"]]["arguments"] == {"variables": "GLOO_SOCKET_IFNAME"}
    assert done.err == ""


def test_words_give_verdict_evidence_and_what_to_do() -> None:
    done = rankdeck_here("doctor", "interface", env=WRONG, code=3)
    assert done.out.startswith("broken         Network interface       GLOO_SOCKET_IFNAME names no interface")
    assert "\n broken: interface" not in done.out and "broken: interface\n" in done.out
    for words in ("GLOO_SOCKET_IFNAME=none7", "Unset it", "unset GLOO_SOCKET_IFNAME", "0 of 1 are good"):
        assert words in done.out
    assert "1 of 1 are good" in rankdeck_here("doctor", "interface", code=0).out


def test_a_check_that_there_is_not_is_refused() -> None:
    done = rankdeck_here("doctor", "glo", code=2)
    assert done.err == 'There is no check called "glo".\nDid you mean "gloo"?\n'
    assert rankdeck_here("doctor", "--json", "nothing", code=2).json["problems"][0]["code"] == "unknown-check"
    assert rankdeck_here("doctor", "files", "--python", "/nowhere", code=2).err.startswith(
        "--python: there is"
    )


def test_without_torch_it_works_and_says_so(tmp_path: Path) -> None:
    env = torch_that("raise ImportError('libtorch.so is not there')", tmp_path)
    done = rankdeck("doctor", "python", "gloo", "--python", sys.executable, "--json", env=env, code=3)
    rows = {row["name"]: row for row in done.lines[1:-1]}
    assert rows["python"]["finding"] == "torch cannot be imported."
    assert "import torch: ImportError: libtorch.so is not there" in rows["python"]["evidence"]
    assert rows["gloo"]["verdict"] == "not-tried"
    assert "Traceback" not in done.out + done.err


def test_the_command_itself_imports_no_torch() -> None:
    script = (
        "import sys\n"
        "from rankdeck.cli.app import run\n"
        "run(['doctor', 'files'])\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True, capture_output=True, timeout=60)


def test_ctrl_c_ends_it_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    env = torch_that(f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(600)", tmp_path)
    with start_rankdeck("doctor", "python", "--python", sys.executable, env=env) as doctor:
        wait_until(mark.exists)
        doctor.send_signal(signal.SIGINT)
        _, err = doctor.communicate(timeout=30)
    assert (doctor.returncode, err) == (130, "")


@pytest.mark.slow
def test_every_check_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    done = rankdeck("doctor", "--json", "--python", sys.executable, cwd=here)
    first, *rows, last = done.lines
    names = [row["name"] for row in rows]
    assert sorted(names) == sorted(row["name"] for row in first["rows"])
    assert set(TITLES) - set(names) == {"own-python"}
    assert done.code == (3 if last["broken"] else 0)
    assert all(row["finding"] and row["verdict"] for row in rows)
    assert next(row for row in rows if row["name"] == "gloo")["verdict"] == "good", rows
    assert list(here.iterdir()) == []


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="a driver is here")
def test_it_is_offered_where_the_machine_is_the_fault_and_nowhere_else() -> None:
    words = "Look the machine over with: rankdeck doctor"
    assert words in rankdeck_here("train", "digits-mlp", "--devices", "gpu:0", code=3).err
    problem = rankdeck_here("devices", "--json", code=3).json["problems"][0]
    assert words in problem["advice"] and problem["templates"]["advice.one"].endswith("{command}")
    assert "doctor" not in rankdeck_here("train", "digits-mlp", "--devices", "cpu:0", code=2).err


def test_an_environment_in_the_current_folder_is_tried_only_where_it_is_named(tmp_path: Path) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\ntouch {tmp_path}/canary\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = torch_that("raise ImportError('it takes seconds')", tmp_path)
    for named, is_run in (([], False), (["--python", str(python)], True)):
        rankdeck("doctor", "python", *named, cwd=tmp_path, env=env, code=3)
        assert (tmp_path / "canary").exists() == is_run
