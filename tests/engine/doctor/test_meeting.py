"""Two ranks that really meet; and ranks that fail, hang or add up wrongly, as processes that do so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankdeck.doctor import meeting
from rankdeck.doctor.lines import CheckLine, Verdict
from rankdeck.doctor.meeting import look_at_gloo, meet

OWN = Path(sys.executable)


def only(rows: Iterable[CheckLine]) -> CheckLine:
    (line,) = rows
    return line


def test_two_ranks_meet_by_gloo_their_sums_are_right_and_their_speed_is_measured() -> None:
    went = meet(OWN, "gloo", {**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
    assert went.is_good, went
    assert [step["stage"] for step in went.stages[1]] == ["torch", "store", "met", "summed", "measured"]
    assert went.fact("num_bytes") == 16 << 20 and went.fact("seconds") > 0
    said = meeting._speed(went)
    assert "an all_reduce of 16 MiB runs at " in said and said.endswith("/s.")


@pytest.mark.slow
def test_the_setting_that_helps_is_found_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none7")
    line = only(look_at_gloo(OWN))
    assert line.verdict is Verdict.BROKEN and line.finding == "They failed when they connected to each other."
    assert line.command == "export GLOO_SOCKET_IFNAME=lo"
    assert "with GLOO_SOCKET_IFNAME=lo it works" in line.evidence
    assert any("none7" in words for words in line.evidence)


@pytest.fixture
def acting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of Python that stands for what a rank runs; RANK is told to it, and `tell` tells a step."""
    probe = tmp_path / "probe.py"
    monkeypatch.setattr(meeting, "_PROBE", probe)
    monkeypatch.setattr(meeting, "MEETS_WITHIN_S", 0.5)
    return probe


ACTING = """
import json, os, sys, time
rank = int(sys.argv[1])
def tell(stage, **facts): print(json.dumps({"stage": stage, **facts}), flush=True)
"""
MET = 'tell("torch"); tell("store", port=1); tell("met"); '


@pytest.mark.parametrize(
    ("acts", "finding"),
    [
        (MET + "time.sleep(600)", "They hung when they added up a tensor."),
        (
            'tell("torch"); tell("store", port=1); time.sleep(600)',
            "They hung when they connected to each other.",
        ),
        ('tell("torch"); time.sleep(600)', "They hung when they opened a store on loopback."),
        (MET + 'tell("summed", num_wrong=3)', "They meet, and 6 of their sums are wrong."),
        (
            MET + r'sys.exit("no way\nframe #1: of C++\n") if rank else time.sleep(600)',
            "They failed when they added up a tensor.",
        ),
        (MET + "os.abort() if rank else time.sleep(600)", "They failed when they added up a tensor."),
    ],
)
def test_where_ranks_hang_or_fail_is_told(acting: Path, acts: str, finding: str) -> None:
    acting.write_text(ACTING + acts)
    line = only(look_at_gloo(OWN))
    assert (line.verdict, line.finding) == (Verdict.BROKEN, finding)
    assert "with GLOO_SOCKET_IFNAME=lo it fails, too" in line.evidence
    assert any("rank 1: no way" in words for words in line.evidence) is ("no way" in acts)
    assert any("it took too long" in words for words in line.evidence) is finding.startswith("They hung")


def test_ranks_that_cannot_import_torch_say_so_once(acting: Path) -> None:
    acting.write_text('raise ModuleNotFoundError("No module named torch")')
    line = only(look_at_gloo(OWN))
    assert line.verdict is Verdict.NOT_TRIED and line.fix == "See Python and torch."
    assert any("No module named torch" in words for words in line.evidence)


def test_an_interpreter_that_is_not_there_is_told(tmp_path: Path) -> None:
    line = only(look_at_gloo(tmp_path / "none"))
    assert line.verdict is Verdict.NOT_TRIED and str(tmp_path / "none") in line.finding


def test_lines_of_others_in_between_are_left_out(acting: Path) -> None:
    acting.write_text(ACTING + 'print("hello"); print("[1"); print("{}"); ' + MET + 'tell("measured")')
    went = meet(OWN, "gloo", os.environ)
    assert went.is_good and len(went.stages[0]) == 4


@pytest.mark.gpu
def test_two_gpus_meet_by_nccl() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("it takes two GPUs")
    line = only(meeting.look_at_nccl(OWN))
    assert line.verdict in (Verdict.GOOD, Verdict.NOT_TRIED), line
