"""`make gpu` where there is no GPU: everything in it runs, and what it writes says that it was a dry run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.pipelining import schedules

from rankdeck.config.gpu_models import find_gpu
from rankdeck.planner.candidates import Target, TargetDevice
from tests.gpu import __main__ as gpu_day
from tests.gpu import peaks, suite
from tests.gpu.configurations import ON_ONE, OVER_RANKS
from tests.gpu.device import Cpu
from tests.gpu.part import Part
from tests.helpers.checkout import CHECKOUT, PRODUCT

BARE = """
from importlib.machinery import PathFinder

found = PathFinder.find_spec

def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in {names!r} else found(name, path, target)

PathFinder.find_spec = classmethod(find_spec)
"""


def gpu(*args: str | Path, without: tuple[str, ...] = (), folder: Path) -> subprocess.CompletedProcess[str]:
    """python -m tests.gpu, on a machine on which these packages are not installed."""
    bare = folder / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(BARE.replace("{names!r}", repr(set(without))))
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *map(str, args), "--folder", str(folder)],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(bare), PRODUCT))},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def read_part(folder: Path, name: str) -> dict[str, object]:
    result: dict[str, object] = json.loads((folder / f"{name}.json").read_text())
    return result


@pytest.mark.parametrize(
    "names", [("nvml", "peaks", "kernels"), pytest.param(tuple(gpu_day.PARTS), marks=pytest.mark.slow)]
)
def test_a_dry_run_measures_something_in_every_part_and_says_what_it_is(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    page = CHECKOUT / "docs/gpu.md"
    before = page.read_text() if page.exists() else None
    options = [word for name in names for word in ("--part", name)]
    done = gpu("--dry-run", *options, "--page", tmp_path / "page.md", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (page.read_text() if page.exists() else None) == before
    written = (tmp_path / "page.md").read_text().splitlines() if len(names) == len(gpu_day.PARTS) else []
    lines = [line for line in [*done.stdout.splitlines(), *written] if line]
    assert lines and [line for line in lines if not line.startswith("dry run: ")] == []
    assert done.stderr == ""
    for name in names:
        result = read_part(tmp_path, name)
        assert result["rows"] and result["cannot"] is None and not result["failures"], result
        assert name in ("suite", "pace") or result["misses"] == []
    assert "suite" not in names or len(read_part(tmp_path, "suite")["rows"]) >= 7  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_part_without_its_packages_names_them_and_the_others_go_on(tmp_path: Path) -> None:
    part_names = ("suite", "pace", "kernels", "peaks")
    without = ("pytest", "typer", "rich", "pynvml", "transformers", "tokenizers", "sklearn", "PIL")
    options = [word for name in part_names for word in ("--part", name)]
    done = gpu("--dry-run", *options, without=without, folder=tmp_path)
    assert done.returncode == 1
    assert "page needs nvml, ranks too" in done.stdout and done.stderr == ""
    lacks = {name: read_part(tmp_path, name)["cannot"] for name in part_names}
    assert str(lacks["suite"]).startswith("bring nvidia-ml-py, rich, typer, pytest:")
    assert str(lacks["pace"]).startswith("bring nvidia-ml-py, rich, typer:")
    assert str(lacks["kernels"]).startswith("bring nvidia-ml-py:") and lacks["peaks"] is None
    assert read_part(tmp_path, "peaks")["rows"] and not read_part(tmp_path, "peaks")["failures"]


def test_without_a_gpu_nothing_is_measured_or_written(tmp_path: Path) -> None:
    done = gpu("--part", "peaks", folder=tmp_path)
    assert done.returncode == 3
    assert "no GPU here" in done.stdout and "--dry-run" in done.stdout
    assert list(tmp_path.glob("*.json")) == []


def test_a_part_that_has_no_time_says_what_it_left_out(tmp_path: Path) -> None:
    late = Part("peaks", True, 1.0, folder=tmp_path, begun_s=time.monotonic() - 2.0)
    peaks.measure_on_one(late, Cpu(), None)
    assert late.left_out == [f"60 configurations from {ON_ONE[0]} on: no time left."] and not late.rows
    late = Part("suite", True, 1.0, folder=tmp_path, begun_s=time.monotonic() - 2.0)
    suite.measure(late)
    assert late.left_out == ["what pytest had not come to: no time left."]


def test_a_torch_whose_stages_do_not_vote_yet_is_measured_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(schedules, "InferenceMode")
    monkeypatch.delattr(schedules._PipelineSchedule, "_warmup_p2p")
    with peaks._nobody_answers():
        assert not hasattr(schedules._PipelineSchedule, "_warmup_p2p")


def test_the_parts_take_twenty_minutes_at_most_and_none_more_than_eight() -> None:
    times_s = [spec.budget_s + gpu_day.GRACE_S for spec in gpu_day.PARTS.values()]
    assert sum(times_s) + 30 <= 20 * 60 and max(times_s) <= 8 * 60  # 30 s to find the card


def test_all_configurations_can_be_planned_for_a_gpu_and_tried_on_a_cpu() -> None:
    gpu = find_gpu("H100-80GB")
    assert gpu is not None
    assert (len(set(ON_ONE)), len(set(OVER_RANKS))) == (60, 20)
    for configuration in (*ON_ONE, *OVER_RANKS):
        like_cuda = Target(
            "H100", (TargetDevice(gpu.name, gpu.total_bytes, 0, gpu),) * configuration.num_ranks, True
        )
        assert configuration.config(like_cuda).devices.use.startswith("gpu")
        if configuration.way != "fp16":
            assert configuration.config(
                Cpu().target({}, configuration.num_ranks), small=True
            ).devices.use.startswith("cpu")
