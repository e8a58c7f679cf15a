"""The index of rows never changes what is shown: damaged, aged or swapped, it is compared with reading."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from rankdeck.run import row_index
from rankdeck.run.row import RunInfo, RunMetrics, read_info
from rankdeck.run.row_index import RunRows, index_file, read_index, read_stamp
from rankdeck.run.row_metrics import RunMetricsReader, run_metrics
from rankdeck.run.run_state import read_run_state
from rankdeck.run.summary_builder import summarize
from rankdeck.run_dir import RaceDir, RunDir, labels_stamp, list_folder, read_labels, write_labels
from tests.helpers.many_runs import write_many
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs; what has just been written counts as settled."""
    monkeypatch.setattr(row_index, "_SETTLED_NS", 0)
    write_many(tmp_path / "runs", 12, seed=3)
    return tmp_path / "runs"


def indexed_rows(runs: Path) -> list[RunInfo]:
    """What the next program is told, with the index as it lies there."""
    rows = RunRows()
    infos = [rows.info(run) for run in list_folder(runs)]
    rows.save()
    return infos


def read_rows(runs: Path) -> list[RunInfo]:
    return [read_info(run) for run in list_folder(runs)]


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(run: RunDir) -> None:
        raise AssertionError(f"{run.name} was read")

    monkeypatch.setattr(row_index, "read_info", forbidden)


def test_rows_of_ended_runs_are_read_once(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_rows(runs)
    assert indexed_rows(runs) == expected
    forbid_reading(monkeypatch)
    assert indexed_rows(runs) == expected


def test_a_row_is_cached_while_its_stamp_matches(runs: Path) -> None:
    """Without this the other tests could not fail."""
    before = indexed_rows(runs)
    rows = read_index(runs)
    forged = {name: (stamp, row.replace(b"GPT", b"TPG")) for name, (stamp, row) in rows.items()}
    row_index._write_index(runs, forged)
    assert [info.title for info in indexed_rows(runs)] == [
        info.title.replace("GPT", "TPG") for info in before
    ]


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a bit": flip_bits,
    "cut": lambda data, rng: data[: rng.randrange(len(data))],
    "longer": lambda data, rng: data + rng.randbytes(rng.randrange(1, 50)),
    "noise": lambda data, rng: rng.randbytes(rng.randrange(200)),
    "twice": lambda data, rng: data + data,
    "zeros": lambda data, rng: bytes(len(data)),
}


def test_a_damaged_index_changes_nothing(runs: Path) -> None:
    expected = indexed_rows(runs)
    file = index_file(runs)
    content = file.read_bytes()
    for seed in range(60):
        rng = random.Random(seed)
        damaged = DAMAGE[rng.choice(list(DAMAGE))](content, rng)
        file.write_bytes(damaged)
        assert damaged == content or read_index(runs) == {}, seed
        assert indexed_rows(runs) == expected, seed
        assert len(read_index(runs)) == len(expected), "it is made again"


def change_files(run: RunDir, rng: random.Random) -> None:
    """What may happen to a run's files after it was listed."""
    what = rng.randrange(6)
    rank = run.events_folder / "rank-0.0.jsonl"
    if what == 0:
        labels = read_labels(run.path).with_changes(name=f"other {rng.random()}", tags=("new",))
        write_labels(run.path, labels)
    elif what == 1:
        (run.path / "end.json").unlink(missing_ok=True)
    elif what == 2:
        (run.path / "end.json").write_text('{"outcome": "failed", "exit_code": 1, "ended": 5.0}')
    elif what == 3 and rank.exists():
        rank.write_bytes(rank.read_bytes()[: rng.randrange(1, 400)])
    elif what == 4:
        rank.unlink(missing_ok=True)
    else:
        (run.path / "environment.json").write_text('{"title": "another"}')


def test_a_stale_index_changes_nothing(runs: Path) -> None:
    indexed_rows(runs)
    for seed in range(40):
        rng = random.Random(seed)
        for run in rng.sample(list_folder(runs), 2):
            change_files(run, rng)
        assert indexed_rows(runs) == read_rows(runs), seed


def test_an_index_of_another_folder_is_ignored(runs: Path, tmp_path: Path) -> None:
    indexed_rows(runs)
    file = index_file(runs).read_bytes()
    other = tmp_path / "other"
    for run in list_folder(runs):
        copied = other / run.name
        (copied / "events").mkdir(parents=True)
        for name in ("config.toml", "events/supervisor.0.jsonl"):
            (copied / name).write_bytes((run.path / name).read_bytes())
    index_file(other).write_bytes(file)
    assert read_index(other) == {} and indexed_rows(other) == read_rows(other)
    assert {info.path.parent for info in indexed_rows(other)} == {other}


def test_an_index_of_another_version_is_ignored(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed_rows(runs)
    monkeypatch.setattr("rankdeck.__version__", "99.0")
    assert read_index(runs) == {} and indexed_rows(runs) == read_rows(runs)


@pytest.mark.parametrize("shape", ["rows-1 0.1.0 path title outcome", "rows-0", ""])
def test_an_index_of_an_older_version_is_replaced_silently(
    runs: Path, shape: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = {run.name: (b"x" * 16, b"\x93\x01\x02\x03") for run in list_folder(runs)}
    data = msgspec.msgpack.encode(row_index._Index(shape, str(runs), rows))
    file = row_index.index_file(runs)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(row_index._checksum(data) + data)
    assert indexed_rows(runs) == read_rows(runs)
    assert read_index(runs).keys() == rows.keys() and read_index(runs) != rows
    assert capfd.readouterr() == ("", "")


def test_recently_changed_runs_are_not_cached(tmp_path: Path) -> None:
    write_many(tmp_path / "runs", 2)
    indexed_rows(tmp_path / "runs")
    assert read_index(tmp_path / "runs") == {}


def test_the_lock_is_checked_each_time(runs: Path) -> None:
    run = WrittenRun(runs, "mine")
    run.start()
    assert indexed_rows(runs)[0].outcome == "running" and run.path.name not in read_index(runs)
    run.lose()
    for _ in range(2):
        assert indexed_rows(runs)[0].outcome == "lost"
    assert run.path.name in read_index(runs)


def test_a_non_utf8_name_or_a_read_only_folder_disables_the_cache(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run, *_) = list_folder(runs)
    odd = run.path.rename(os.fsdecode(os.fsencode(run.path) + b"\xff"))
    assert odd.name in [info.path.name for info in indexed_rows(runs)]
    assert indexed_rows(runs) == read_rows(runs) and odd.name not in read_index(runs)
    index_file(runs).unlink()
    index_file(runs).parent.rmdir()
    index_file(runs).parent.write_text("in the way")
    assert indexed_rows(runs) == read_rows(runs)


def test_rows_of_removed_runs_are_removed(runs: Path) -> None:
    indexed_rows(runs)
    run = list_folder(runs)[0]
    for file in sorted(run.path.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    run.path.rmdir()
    write_labels(list_folder(runs)[0].path, read_labels(list_folder(runs)[0].path).with_changes(note="kept"))
    indexed_rows(runs)
    assert run.name not in read_index(runs) and len(read_index(runs)) == 11


def test_two_programs_keep_rows_of_both(runs: Path) -> None:
    first, second = RunRows(), RunRows()
    half = list_folder(runs)
    for rows, group in ((first, half[:6]), (second, half[6:])):
        for run in group:
            rows.info(run)
    threads = [threading.Thread(target=rows.save) for rows in (first, second)]
    threads[0].start()
    threads[0].join()
    threads[1].start()
    threads[1].join()
    assert len(read_index(runs)) == 12 and indexed_rows(runs) == read_rows(runs)


def test_metrics_equal_those_of_show_and_are_cached_with_the_row(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = RunRows()
    for run in list_folder(runs):
        stamp, followed = read_stamp(run.path), RunMetricsReader(run)
        while followed.read_chunk(300):
            pass
        info = rows.with_metrics(run, followed.metrics(), stamp)
        facts = summarize(run).facts()
        assert info.metrics is not None and info.metrics == run_metrics(read_run_state(run))
        assert info.metrics.loss == facts["loss"]["last"] and info.step == facts["steps"]
        assert info.metrics.held_out == (facts["evaluation"] or {"loss": None})["loss"]
        assert info.metrics.samples_per_s == facts["samples_per_s"]
        peaks = [device["peak_bytes"] for device in facts["devices"] if device["peak_bytes"] is not None]
        assert info.metrics.peak_bytes == max(peaks, default=None)
    rows.save()
    forbid_reading(monkeypatch)
    infos = indexed_rows(runs)
    assert all(info.metrics is not None for info in infos)
    assert any(info.metrics.imbalance is not None for info in infos if info.metrics)


def test_metrics_read_during_a_change_are_not_cached(runs: Path) -> None:
    rows, run = RunRows(), list_folder(runs)[0]
    stamp = read_stamp(run.path)
    write_labels(run.path, read_labels(run.path).with_changes(note="meanwhile"))
    assert rows.with_metrics(run, RunMetrics(loss=1.0), stamp).metrics is None


def test_every_field_of_a_row_is_cached(runs: Path) -> None:
    info = read_info(list_folder(runs)[0])
    assert labels_stamp(info.path) == info.labels_stamp
    odd = replace(info, reason="ü" * 300, started=float("inf"), metrics=RunMetrics(loss=float("nan")))
    again = row_index._decode(row_index._encode(odd))
    assert (again.reason, again.started, again.path) == (odd.reason, odd.started, odd.path)
    with pytest.raises(msgspec.MsgspecError):
        row_index._decode(row_index._encode(odd)[:-3])


def test_a_folder_that_is_both_a_run_and_a_race_is_listed_as_either(runs: Path) -> None:
    run = list_folder(runs)[0]
    (run.path / "race.json").write_text("{}")
    (run.path / "entries").mkdir()
    rows = RunRows()
    for _ in range(2):
        assert rows.info(run).race is None
        assert rows.info(RaceDir(run.path)).race is not None
        rows.save()
