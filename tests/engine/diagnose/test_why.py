"""A real allocation that fails: what is said of it in the terminal, and on a page that can be sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.diagnose.fixes import fixes_file
from rankdeck.events import MEASURED_IN_REHEARSAL
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import DOES_NOT_FIT, FITS, PlanLine, PlannedDevice
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import RunDir, default_runs_folder, list_runs
from tests.helpers import hungry
from tests.helpers.cli import FinishedCommand, rankdeck, rankdeck_in_process
from tests.helpers.hostile_run import ParsedPage
from tests.helpers.written_run import MIB, WrittenRun
from tests.helpers.written_script import WrittenScript

CONFIG = """
name = "Hungry <b>&"
model = {{ use = "{file}:hungry", args = {{ at = {at} }} }}
data = {{ use = "digits" }}
train = {{ steps = 9, global_batch = 8, evaluate_every = 0, optimizer = {{ use = "sgd" }} }}
strategy = {{ use = "single" }}
devices = {{ use = "cpu:1" }}
"""


def run_out_of_memory(folder: Path, at: int) -> RunDir:
    """A run that wants more than there is in its forward number `at`."""
    file = folder / "hungry.toml"
    file.write_text(CONFIG.format(file=hungry.__file__, at=at))
    finished: FinishedCommand = rankdeck("train", file, exit_code=1)
    assert "can't allocate memory" in finished.err and "hungry.py, line" in finished.err
    (run,) = list_runs(default_runs_folder())
    return run


def line(strategy: str, size: int, **more: object) -> PlanLine:
    device = PlannedDevice(device=0, active_bytes=size, total_bytes=size)
    fits = DOES_NOT_FIT if more else FITS
    return PlanLine(
        strategy=strategy, options={}, label=strategy, verdict=fits, devices=[device], configured=bool(more)
    )


def test_why_explains_memory_allocation_and_fixes(tmp_path: Path) -> None:
    run = run_out_of_memory(tmp_path, 2)  # the ledger follows the first three steps
    (event,) = read_run_state(run).out_of_memory.values()
    assert event.allocation.asked_bytes == hungry.ASKED_BYTES and event.module == "2 (Hungry)"
    assert (event.step, event.source) == (2, MEASURED_IN_REHEARSAL)
    (memory,) = event.devices
    by_module = sum(kinds["parameters"] for kinds in event.modules.values())
    assert memory.live_by_kind is not None and memory.live_by_kind["parameters"] == by_module == 4 * (
        64 * 32 + 32 + 32 * 32 + 32 + 32 * 10 + 10
    )
    fixes_file(run).write_bytes(
        b"".join(map(plan_lines.encode, [line("single", 3 * MIB, own=True), line("fsdp", MIB)]))
    )
    output = rankdeck_in_process("why", run.path, exit_code=0).out
    assert "Virtual 0 ran out of memory in step 2." in output and "1024.0 TiB failed in 2 (Hungry)" in output
    assert "torch.empty(ASKED_BYTES" in output and "when it failed, in step 2" in output
    assert "FSDP: 2.0 MiB less than now" in output and "--strategy fsdp" in output
    page = tmp_path / "why.html"
    rankdeck_in_process("report", run.path, "--html", page, exit_code=0)
    document = ParsedPage(page.read_text())
    for text in (
        "Why the run ran out of memory",
        "2 (Hungry)",
        "2.inner",
        "FSDP",
        "2.0 MiB less than now",
        "<b>&",
    ):
        assert text in document.text, text
    tags = {tag for tag, _ in document.elements}
    assert not tags & {"script", "img", "link"} and str(Path.home()) not in page.read_text()
    assert "http" not in page.read_text().replace("http-equiv", "")


def test_why_says_nothing_of_memory_in_a_healthy_run(tmp_path: Path) -> None:
    fine = WrittenRun(default_runs_folder(), "fine")
    fine.start()
    fine.end()
    assert rankdeck_in_process("why", fine.path, "--json", exit_code=0).json == {"problems": []}
    assert rankdeck_in_process("why", fine.path, exit_code=0).out.startswith("No problems were found")
    page = tmp_path / "fine.html"
    rankdeck_in_process("report", fine.path, "--html", page, exit_code=0)
    assert "Why the run ran out of memory" not in page.read_text()


@pytest.mark.slow
def test_fixes_are_planned_once(tmp_path: Path) -> None:
    run = run_out_of_memory(tmp_path, 5)
    lines = rankdeck("why", run.path, "--json", exit_code=0).lines
    current = next(row for row in lines if row["configured"] and not row["changes"])
    assert current["strategy"] == "single" and current["devices"][0]["total_bytes"] > 0
    assert fixes_file(run).is_file()
    before = fixes_file(run).stat().st_mtime_ns
    assert rankdeck_in_process("why", run.path, "--json", exit_code=0).lines == lines
    assert fixes_file(run).stat().st_mtime_ns == before


@pytest.mark.parametrize("level", ["light", "full", "check", "none"])
def test_why_says_that_some_checks_ran_in_a_few_steps_only(level: str) -> None:
    run = WrittenScript(default_runs_folder(), level, {"observe": level})
    run.start_script()
    run.end()
    output = rankdeck_in_process("why", run.path, exit_code=0).out
    assert output.startswith("No problems were found")
    assert ("--observe check" in output) == (level in ("light", "full"))
