"""Two ranks that really meet; and ranks that fail, hang or add up wrongly, as processes that do so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankdeck.doctor import rendezvous
from rankdeck.doctor.lines import CheckLine, Verdict
from rankdeck.doctor.rendezvous import check_gloo, run_rendezvous

PYTHON = Path(sys.executable)


def single_row(rows: Iterable[CheckLine]) -> CheckLine:
    (line,) = rows
    return line


def test_two_gloo_ranks_connect_and_measure_all_reduce() -> None:
    went = run_rendezvous(PYTHON, "gloo", {**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
    assert went.is_ok, went
    assert [step["stage"] for step in went.steps[1]] == ["torch", "store", "met", "summed", "measured"]
    assert went.fact("num_bytes") == 16 << 20 and went.fact("seconds") > 0
    speed_text = rendezvous._speed_text(went)
    assert "an all_reduce of 16 MiB runs at " in speed_text and speed_text.endswith("/s.")


@pytest.mark.slow
def test_a_variable_that_fixes_gloo_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none7")
    line = single_row(check_gloo(PYTHON))
    assert (
        line.verdict is Verdict.FAILED and line.finding == "The ranks failed while connecting to each other."
    )
    assert line.command == "export GLOO_SOCKET_IFNAME=lo"
    assert "with GLOO_SOCKET_IFNAME=lo it works" in line.evidence
    assert any("none7" in text for text in line.evidence)


@pytest.fixture
def acting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of Python that stands for what a rank runs; RANK is told to it, and `tell` tells a step."""
    probe = tmp_path / "probe.py"
    monkeypatch.setattr(rendezvous, "_PROBE", probe)
    monkeypatch.setattr(rendezvous, "RENDEZVOUS_TIMEOUT_S", 0.5)
    return probe


FAKE_RANK = """
import json, os, sys, time
rank = int(sys.argv[1])
def tell(stage, **facts): print(json.dumps({"stage": stage, **facts}), flush=True)
"""
CONNECTED_STEPS = 'tell("torch"); tell("store", port=1); tell("met"); '


@pytest.mark.parametrize(
    ("acts", "finding"),
    [
        (CONNECTED_STEPS + "time.sleep(600)", "The ranks hung while summing tensors."),
        (
            'tell("torch"); tell("store", port=1); time.sleep(600)',
            "The ranks hung while connecting to each other.",
        ),
        ('tell("torch"); time.sleep(600)', "The ranks hung while opening a store on loopback."),
        (
            CONNECTED_STEPS + 'tell("summed", num_wrong=3)',
            "The ranks connect, but 6 of their sums are wrong.",
        ),
        (
            CONNECTED_STEPS + r'sys.exit("no way\nframe #1: of C++\n") if rank else time.sleep(600)',
            "The ranks failed while summing tensors.",
        ),
        (
            CONNECTED_STEPS + "os.abort() if rank else time.sleep(600)",
            "The ranks failed while summing tensors.",
        ),
    ],
)
def test_the_stage_of_a_hang_or_failure_is_named(acting: Path, acts: str, finding: str) -> None:
    acting.write_text(FAKE_RANK + acts)
    line = single_row(check_gloo(PYTHON))
    assert (line.verdict, line.finding) == (Verdict.FAILED, finding)
    assert "with GLOO_SOCKET_IFNAME=lo it also fails" in line.evidence
    assert any("rank 1: no way" in text for text in line.evidence) is ("no way" in acts)
    assert any("it took too long" in text for text in line.evidence) is finding.startswith("The ranks hung")


def test_the_check_is_skipped_when_torch_cannot_be_imported(acting: Path) -> None:
    acting.write_text('raise ModuleNotFoundError("No module named torch")')
    line = single_row(check_gloo(PYTHON))
    assert line.verdict is Verdict.SKIPPED and line.fix == "See the result for Python and torch."
    assert any("No module named torch" in text for text in line.evidence)


def test_the_check_is_skipped_for_a_missing_interpreter(tmp_path: Path) -> None:
    line = single_row(check_gloo(tmp_path / "none"))
    assert line.verdict is Verdict.SKIPPED and str(tmp_path / "none") in line.finding


def test_other_output_of_ranks_is_ignored(acting: Path) -> None:
    acting.write_text(
        FAKE_RANK + 'print("hello"); print("[1"); print("{}"); ' + CONNECTED_STEPS + 'tell("measured")'
    )
    went = run_rendezvous(PYTHON, "gloo", os.environ)
    assert went.is_ok and len(went.steps[0]) == 4


@pytest.mark.gpu
def test_two_gpus_connect_by_nccl() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("it takes two GPUs")
    line = single_row(rendezvous.check_nccl(PYTHON))
    assert line.verdict in (Verdict.OK, Verdict.SKIPPED), line
