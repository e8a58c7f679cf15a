"""`rankdeck compare`, typed: a table, JSON, a page, and words for every mistake."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from rankdeck.run_dir import create_race
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.written_run import MIB, WrittenRun, device_infos
from tests.helpers.written_script import WrittenScript


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, one of them resumed, where the command looks for runs."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("RANKDECK_RUNS", str(folder))
    for name, peaks in (("fast", (90, 90)), ("slow", (300, 100))):
        run = WrittenRun(folder, name, {"strategy": {"use": "dp" if name == "slow" else "ddp"}})
        run.start(1, device_infos(2), steps=4, strategy="dp" if name == "slow" else "ddp")
        run.write_steps(0, 1, [4.0, 3.0, 2.0, 1.0], step_s=0.5 if name == "slow" else 0.25)
        run.write_memory(0, 1, {device: {"parameters": peak * MIB} for device, peak in enumerate(peaks)})
        if name == "slow":
            run.start(1, device_infos(2), steps=4, strategy="dp", attempt=1)
        run.end()
    return folder


def test_runs_are_side_by_side_and_the_best_values_are_marked(runs: Path) -> None:
    done = rankdeck_in_process("compare", "slow", "fast")
    assert done.exit_code == 0 and done.err == ""
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "Step time 500 ms 250 ms * -50 %" in lines
    assert "Peak, fullest device 300.0 MiB 90.0 MiB * -70 %" in lines
    assert "strategy.use dp ddp" in lines
    assert "measured in rehearsal" in done.out and "step 4" in done.out


@pytest.mark.parametrize(
    ("by", "label"), [("step", "step 2"), ("time", "after 0.80 s"), ("samples", "25 samples")]
)
def test_losses_are_listed_along_the_requested_axis(runs: Path, by: str, label: str) -> None:
    assert label in rankdeck_in_process("compare", "slow", "fast", "--by", by).out


def test_json_has_the_same_values_and_the_named_baseline(runs: Path) -> None:
    result = rankdeck_in_process(
        "compare", "slow@0", "fast", "--baseline", "fast", "--json", "--by", "time"
    ).json
    assert [run["letter"] for run in result["runs"]] == ["A", "B"] and result["baseline"] == "B"
    assert [run["attempt"] for run in result["runs"]] == [0, None]
    metrics = {row["key"]: row for row in result["figures"]}
    assert metrics["step_s"]["best"] == ["B"] and metrics["step_s"]["difference"] == {"A": "2×", "B": None}
    assert metrics["peak"]["values"]["A"]["value"] == 300 * MIB
    assert result["runs"][0]["devices"][1]["peak_bytes"] == 100 * MIB
    assert result["loss"]["by"] == "time" and result["loss"]["curves"]["A"]["at"] == pytest.approx(
        [0.5, 1.0, 1.5, 2.0]
    )
    assert {row["key"]: row["values"] for row in result["configuration"]}["strategy.use"] == {
        "A": "dp",
        "B": "ddp",
    }


def test_html_writes_a_page_and_prints_nothing_on_stdout(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "both.html"
    done = rankdeck_in_process("compare", "slow", "fast", "--html", file)
    assert (done.exit_code, done.out) == (0, "") and f"Saved the comparison of 2 runs to {file}." in done.err
    assert file.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "what"), [(("compare", "slow", "fast"), "the comparison"), (("report", "slow"), "the report")]
)
def test_a_dash_writes_the_page_to_stdout(
    runs: Path, words: tuple[str, ...], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    done = rankdeck_in_process(*words, "--html", "-", exit_code=0)
    assert done.out.startswith("<!doctype html>") and done.out.rstrip().endswith("</html>")
    assert done.err.startswith(f"Saved {what} of ") and done.err.endswith(" to stdout.\n")
    refused = rankdeck_in_process(*words, "--html", "-", "--json", exit_code=2)
    assert "cannot both be written to stdout" in refused.json["problems"][0]["message"]
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("slow",), "A comparison needs more than one run."),
        (("slow", "slow"), "is listed twice"),
        (("slow", "nothing"), 'There is no run called "nothing".'),
        (("slow", "slow@5"), "has no attempt 5"),
        (("slow", "fast", "--baseline", "slow@0"), 'The baseline "slow@0" is not among the compared runs'),
        (("slow", "fast", "--by", "colour"), "'colour' is not one of"),
        (("slow", "fast", "--html", "."), "is a folder"),
        (("slow", "fast", "--html", "none/page.html"), "The folder none does not exist."),
        (("slow", "fast", "--html", "pipe"), "is not a regular file"),
    ],
)
def test_wrong_compare_arguments_are_refused_with_a_message(
    runs: Path, words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    done = rankdeck_in_process("compare", *words)
    assert done.exit_code == 2 and message in done.err and done.out == ""
    as_json = rankdeck_in_process("compare", *words, "--json")
    assert as_json.exit_code == 2 and message in json.loads(as_json.out)["problems"][0]["message"]


def test_a_report_is_written_for_a_run_or_an_attempt(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "slow.html"
    done = rankdeck_in_process("report", "slow@0", "--html", file, "--by", "time")
    assert (done.exit_code, done.out) == (0, "") and "Saved the report of" in done.err
    assert "DistributedDataParallel" in file.read_text() and 'id="by-time" checked' in file.read_text()
    result = rankdeck_in_process("report", "slow@0", "--html", file, "--json", exit_code=0).json
    assert result["file"] == str(file) and "slow" in result["run"]
    for arguments, message in (
        (("slow", "--html", tmp_path), "is a folder"),
        (("slow",), "--html"),
        (("no", "--html", file), "no run"),
    ):
        refused = rankdeck_in_process("report", *arguments)
        assert refused.exit_code == 2 and message in refused.err


def test_races_and_unknown_attempts_cannot_be_compared(runs: Path) -> None:
    race = create_race(runs, "race", "")
    race.file.write_text('{"title": "Race · MLP · 2"}')
    for name in (race.name, f"{race.name}@0", "Race · MLP · 2"):
        assert "is a race, not a run" in rankdeck_in_process("compare", name, "fast", exit_code=2).err
    for digits in ("9" * 30, "9" * 5000):
        assert (
            "has no attempt 999"
            in (message := rankdeck_in_process("compare", f"slow@{digits}", "fast", exit_code=2).err)
            or "There is no run called" in message
        )


def test_each_step_of_a_short_run_is_listed_once(runs: Path) -> None:
    out = rankdeck_in_process("compare", "slow", "fast").out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("step ")] == ["1", "2", "3", "4"]


def test_only_comparable_configurations_are_called_the_same(runs: Path) -> None:
    script = WrittenScript(runs)
    script.start_script(1)
    script.lose()
    text = "The configurations are the same."
    assert text not in rankdeck_in_process("compare", script.dir.name, "fast").out
    (fast,) = runs.glob("*-fast-*")
    shutil.copy(fast / "config.toml", next(runs.glob("*-slow-*")) / "config.toml")
    assert text in rankdeck_in_process("compare", "slow", "fast").out
    (fast / "config.toml").write_text("nonsense [")
    assert text not in rankdeck_in_process("compare", "slow", "fast").out
