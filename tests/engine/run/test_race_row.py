"""The row of a race and those of its entries, from its file alone."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from rankdeck import run_dir
from rankdeck.base.errors import RunNotFoundError
from rankdeck.run import row_index
from rankdeck.run.race import LOST, RUNNING, WAITING
from rankdeck.run.race_row import race_info
from rankdeck.run.row import row_json
from rankdeck.run.row_index import RunRows
from rankdeck.run_dir import Labels, RaceDir, create_race, find_race, write_labels
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.written_race import STEPS, WrittenRace, make_entry, shifted_losses


@pytest.fixture
def written(tmp_path: Path) -> WrittenRace:
    return WrittenRace(tmp_path / "rankdeck-runs")


def test_a_race_is_a_row_with_entry_rows(written: WrittenRace) -> None:
    compressed = make_entry(3, "ddp", 0.2, losses=shifted_losses(0.5), compress="fp16")
    again = make_entry(5, "single", 0.3, repeats=1)
    written.write(
        make_entry(1, "single", 0.3), make_entry(2, "dp", None), compressed, make_entry(4, "ddp", 0.1), again
    )
    info = race_info(written.folder)
    assert (info.title, info.outcome, info.num_devices, info.device_kind) == (
        "Race · GPT · 2",
        "running",
        2,
        "gpu",
    )
    assert info.race is not None and not info.is_resumable
    assert (info.race.num_entries, info.race.num_done, info.race.fastest) == (4, 4, "ddp")
    assert info.race.losses == "expected"
    first, failed, *_, repeated = info.race.entries
    assert (first.title, first.strategy, first.outcome, first.step, first.steps) == (
        "single", "single", "completed", STEPS, STEPS,
    )  # fmt: skip
    assert first.entry_of == written.folder.path and first.path == written.folder.path / "entries/1-single"
    assert first.metrics is not None and first.metrics.loss == pytest.approx(4.0 / 25)
    assert (first.metrics.peak_bytes, first.metrics.samples_per_s) == (5000, pytest.approx(1 / 0.3))
    assert first.metrics.imbalance is not None and first.metrics.imbalance.device == 0
    assert (failed.outcome, failed.step, failed.is_resumable) == ("failed", 0, False)
    assert failed.metrics is not None and failed.metrics.loss is None
    assert repeated.title == "single again"
    written.lose()


@pytest.mark.parametrize(
    ("others", "losses"),
    [
        ([], None),
        ([make_entry(2, "ddp")], "agrees"),
        ([make_entry(2, "ddp", losses=shifted_losses(0.5))], "differs"),
    ],
)
def test_the_losses_of_a_race_are_those_of_its_worst_entry(
    written: WrittenRace, others: list[object], losses: str | None
) -> None:
    written.write(make_entry(1, "single"), *others)  # type: ignore[arg-type]
    info = race_info(written.folder)
    assert info.race is not None and info.race.losses == losses
    written.lose()


def test_a_running_entry_of_a_lost_race_is_lost(written: WrittenRace) -> None:
    written.write(
        make_entry(1, "single"),
        make_entry(2, "ddp", None, state=RUNNING),
        make_entry(3, "dp", None, state=WAITING),
    )
    info = race_info(written.folder)
    assert info.race is not None and info.race.num_done == 1
    assert [entry.outcome for entry in info.race.entries] == ["completed", "running", "waiting"]
    written.lose()
    info = race_info(written.folder)
    assert info.outcome == LOST and info.race is not None
    assert [entry.outcome for entry in info.race.entries] == ["completed", LOST, "waiting"]


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"{}", b'{"version": 99}'])
def test_an_unreadable_race_is_a_row_with_a_message(written: WrittenRace, text: bytes) -> None:
    written.folder.file.write_bytes(text)
    write_labels(written.folder.path, Labels(tags=("odd",)))
    row = row_json(race_info(written.folder))
    assert (row["outcome"], row["title"], row["tags"]) == ("lost", written.folder.name, ["odd"])
    assert (row["entries"], row["entries_done"], row["steps"]) == (None, 0, 0)
    written.lose()


def test_a_race_without_devices_is_not_listed(written: WrittenRace) -> None:
    written.write(make_entry(1, "single"))
    text = written.folder.file.read_text()
    start, end = text.index('"devices": ['), text.index('"steps"')
    written.folder.file.write_text(f'{text[:start]}"devices": [], {text[end:]}')
    assert race_info(written.folder).outcome == LOST
    written.lose()


def test_rows_of_races_are_cached_until_their_files_change(
    written: WrittenRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_index, "_SETTLED_NS", 0)
    written.write(make_entry(1, "single"), make_entry(2, "ddp", 0.05), ended=time.time(), outcome="completed")
    written.lose()
    rows, folder = RunRows(), written.folder
    info = rows.info(folder)
    rows.save()
    with monkeypatch.context() as patch:
        patch.setattr(row_index, "race_info", lambda folder: pytest.fail("read again"))
        assert RunRows().info(folder) == info == rows.info(folder)
    write_labels(folder.path, Labels(name="The race"))
    assert RunRows().info(folder) == replace(race_info(folder), title="The race")


def test_a_race_is_labelled_like_a_run(written: WrittenRace) -> None:
    written.write(make_entry(1, "single"), make_entry(2, "ddp", 0.05), outcome="completed")
    written.lose()
    name = written.folder.name
    done = rankdeck_in_process(
        "label", name, "--name", "Which one", "--tag", "paper", "--archive", exit_code=0
    )
    assert done.out.split() == ["Which", "one", "#paper", "(archived)"]
    assert rankdeck_in_process("runs", "--json").json == []
    (row,) = rankdeck_in_process("runs", "--all", "--json", exit_code=0).json
    assert (row["title"], row["tags"], row["archived"]) == ("Which one", ["paper"], True)
    assert (row["fastest"], row["losses"], row["entries_done"]) == ("ddp", "agrees", 2)
    assert rankdeck_in_process("show", name, exit_code=0).out.startswith("Which one\n")
    assert [RaceDir(race_dir.path).name for race_dir in run_dir.list_races(written.folder.path.parent)] == [
        name
    ]
    result = rankdeck_in_process("label", name, "--name", "", "--json", exit_code=0).json
    assert result["title"] == "Race · GPT · 2"


def test_a_race_is_found_by_its_title(written: WrittenRace) -> None:
    race = written.write(make_entry(1, "single"))
    runs = written.folder.path.parent
    for text in (str(written.folder.path), written.folder.name, race.title, written.folder.name[9:]):
        assert (race_dir := find_race(text, runs)) is not None and race_dir.path == written.folder.path
    write_labels(written.folder.path, Labels(name="mine"))
    assert find_race("mine", runs) is not None and find_race(race.title, runs) is None
    other = create_race(runs, written.folder.name[16:], "")
    other.file.write_text("{}")
    with pytest.raises(RunNotFoundError, match="matches 2 runs"):
        find_race(written.folder.name[16:20], runs)
    written.lose()
