"""A real allocation that fails: what is said of it in the terminal, and on a page that can be sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.diagnose.fixes import fixes_file
from rankdeck.events import MEASURED_IN_REHEARSAL
from rankdeck.run import plan_lines
from rankdeck.run.fold import read_fold
from rankdeck.run.plan_lines import DOES_NOT_FIT, FITS, PlanLine, PlannedDevice
from rankdeck.rundir import RunDir, default_runs_folder, list_runs
from tests.helpers import hungry
from tests.helpers.cli import Finished, rankdeck, rankdeck_here
from tests.helpers.hostile_run import Seen
from tests.helpers.written_run import MIB, WrittenRun

CONFIG = """
name = "Hungry <b>&"
model = {{ use = "{file}:hungry", args = {{ at = {at} }} }}
data = {{ use = "digits" }}
train = {{ steps = 9, global_batch = 8, evaluate_every = 0, optimizer = {{ use = "sgd" }} }}
strategy = {{ use = "single" }}
devices = {{ use = "cpu:1" }}
"""


def ran_out(folder: Path, at: int) -> RunDir:
    """A run that wants more than there is in its forward number `at`."""
    file = folder / "hungry.toml"
    file.write_text(CONFIG.format(file=hungry.__file__, at=at))
    finished: Finished = rankdeck("train", file, code=1)
    assert "can't allocate memory" in finished.err and "hungry.py, line" in finished.err
    (run,) = list_runs(default_runs_folder())
    return run


def line(strategy: str, size: int, **more: object) -> PlanLine:
    device = PlannedDevice(device=0, active_bytes=size, total_bytes=size)
    fits = DOES_NOT_FIT if more else FITS
    return PlanLine(
        strategy=strategy, options={}, label=strategy, verdict=fits, devices=[device], configured=bool(more)
    )


def test_a_run_that_ran_out_says_what_stood_what_tipped_it_and_the_fixes(tmp_path: Path) -> None:
    run = ran_out(tmp_path, 2)  # the ledger follows the first three steps
    (event,) = read_fold(run).out_of_memory.values()
    assert event.allocation.asked_bytes == hungry.ASKED_BYTES and event.module == "2 (Hungry)"
    assert (event.step, event.source) == (2, MEASURED_IN_REHEARSAL)
    (held,) = event.devices
    by_module = sum(kinds["parameters"] for kinds in event.modules.values())
    assert held.live_by_kind is not None and held.live_by_kind["parameters"] == by_module == 4 * (
        64 * 32 + 32 + 32 * 32 + 32 + 32 * 10 + 10
    )
    fixes_file(run).write_bytes(
        b"".join(map(plan_lines.encode, [line("single", 3 * MIB, own=True), line("fsdp", MIB)]))
    )
    told = rankdeck_here("why", run.path, code=0).out
    assert "Virtual 0 ran out of memory in step 2." in told and "1024.0 TiB failed in 2 (Hungry)" in told
    assert "torch.empty(ASKED_BYTES" in told and "when it failed, in step 2" in told
    assert "FSDP: 2.0 MiB less than now" in told and "--strategy fsdp" in told
    page = tmp_path / "why.html"
    rankdeck_here("report", run.path, "--html", page, code=0)
    seen = Seen(page.read_text())
    for words in ("Why out of memory", "2 (Hungry)", "2.inner", "FSDP", "2.0 MiB less than now", "<b>&"):
        assert words in seen.text, words
    tags = {tag for tag, _ in seen.elements}
    assert not tags & {"script", "img", "link"} and str(Path.home()) not in page.read_text()
    assert "http" not in page.read_text().replace("http-equiv", "")


def test_of_a_run_that_had_room_nothing_is_said_of_memory(tmp_path: Path) -> None:
    fine = WrittenRun(default_runs_folder(), "fine")
    fine.begin()
    fine.end()
    assert rankdeck_here("why", fine.path, "--json", code=0).json == {"problems": []}
    assert rankdeck_here("why", fine.path, code=0).out.startswith("Nothing was found")
    page = tmp_path / "fine.html"
    rankdeck_here("report", fine.path, "--html", page, code=0)
    assert "Why out of memory" not in page.read_text()


@pytest.mark.slow
def test_the_planner_finds_fixes_once(tmp_path: Path) -> None:
    run = ran_out(tmp_path, 5)
    lines = rankdeck("why", run.path, "--json", code=0).lines
    own = next(one for one in lines if one["configured"] and not one["changes"])
    assert own["strategy"] == "single" and own["devices"][0]["total_bytes"] > 0
    assert fixes_file(run).is_file()
    before = fixes_file(run).stat().st_mtime_ns
    assert rankdeck_here("why", run.path, "--json", code=0).lines == lines
    assert fixes_file(run).stat().st_mtime_ns == before
