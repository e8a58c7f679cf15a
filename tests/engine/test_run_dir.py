"""A run's directory: what is written is read once, whoever dies in between; a run is found by its name."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from rankdeck import events, run_dir
from rankdeck.base.errors import ConfigError, RunNotFoundError
from rankdeck.config import from_dict
from rankdeck.run_dir import Cursor, EventReader, RunDir
from tests.helpers.waiting import wait_until
from tests.helpers.written_run import WrittenRun

# A writer as fast as it can and a reader that keeps its place after every batch, both as real processes.
WRITER_CODE = """
import sys
from pathlib import Path
from rankdeck import events
from rankdeck.run_dir import EventWriter
writer = EventWriter(Path(sys.argv[1]))
for step in range(1, int(sys.argv[2]) + 1):
    assert writer.write(events.Phase(rank=0, phase=f"step {step}"))
"""
READER_CODE = """
import os, sys
from pathlib import Path
import msgspec
from rankdeck.run_dir import Cursor, EventReader, RunDir
run, place, found = RunDir(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
reader = EventReader(run)
if place.is_file():
    kept = msgspec.json.decode(place.read_bytes(), type=tuple[dict[str, Cursor], int])
    reader.cursors = kept[0]
    os.truncate(found, kept[1])
else:  # whoever was killed had found some and not yet kept its place
    found.write_bytes(b"")
while True:
    batch = reader.read(max_bytes=4096)
    with open(found, "a") as out:
        out.writelines(event.phase + "\\n" for _, event in batch)
        out.flush()
        size = out.tell()
    new = place.with_suffix(".new")
    new.write_bytes(msgspec.json.encode((reader.cursors, size)))
    new.replace(place)
"""


def read_phases(run: RunDir, reader: EventReader | None = None) -> list[str]:
    run_events = (reader or EventReader(run)).read()
    return [event.phase for _, event in run_events if isinstance(event, events.Phase)]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "20260101-000000-x-0000")
    run.events_folder.mkdir(parents=True)
    return run


def test_events_are_read_in_order_with_their_writer(run: RunDir) -> None:
    for name in ("rank-0", "supervisor"):
        writer = run.writer(name)
        writer.write(events.Phase(rank=0, phase=f"a of {name}"))
        writer.write(events.Phase(rank=0, phase=f"b of {name}"), sync=True)
        writer.close()
    reader = EventReader(run)
    actual = [
        (writer, event.seq, event.phase) for writer, event in reader.read() if isinstance(event, events.Phase)
    ]
    assert actual == [
        ("supervisor", 0, "a of supervisor"),
        ("supervisor", 1, "b of supervisor"),
        ("rank-0", 0, "a of rank-0"),
        ("rank-0", 1, "b of rank-0"),
    ]
    assert reader.read() == []


def test_an_unterminated_last_line_is_not_read_yet(run: RunDir) -> None:
    file = run.events_folder / "rank-0.0.jsonl"
    first, second = (events.encode(events.Phase(seq=seq, rank=0, phase=str(seq))) for seq in (0, 1))
    file.write_bytes(first + second[:-7])
    reader = EventReader(run)
    assert read_phases(run, reader) == ["0"]
    file.write_bytes(first + second)
    assert read_phases(run, reader) == ["1"]
    assert reader.missing == {}


def test_a_torn_line_in_the_middle_is_skipped_and_counted(run: RunDir) -> None:
    lines = [events.encode(events.Phase(seq=seq, rank=0, phase=str(seq))) for seq in range(3)]
    (run.events_folder / "rank-0.0.jsonl").write_bytes(lines[0] + lines[1][:9] + b"\n" + lines[2])
    assert read_phases(run) == ["0", "2"]


def test_damage_inside_a_line_loses_that_line_only(run: RunDir) -> None:
    writer = run.writer("rank-0")
    for reason in ("first", "caf\xe9", "last"):
        writer.write(events.Dropped(lines=1, reason=reason))
    writer.close()
    (file,) = run.events_folder.glob("rank-0.*")
    content = file.read_bytes()
    deep = b'{"kind":"metrics","v":1,"seq":1,"t":1.0,"values":' + b"[" * 100_000
    for damage, expected in ((b"caf\xff", ["first", "caf\ufffd", "last"]), (deep, ["first", "last"])):
        lines = content.splitlines(keepends=True)
        lines[1] = lines[1].replace("caf\xe9".encode(), damage) if damage != deep else deep + b"\n"
        file.write_bytes(b"".join(lines))
        reader = EventReader(run)
        reasons = [event.reason for _, event in reader.read() if isinstance(event, events.Dropped)]
        assert reasons == expected and reader.counts().unreadable == len(lines) - len(expected)


def test_a_gap_in_seq_counts_missing_lines(run: RunDir) -> None:
    lines = [events.encode(events.Phase(seq=seq, rank=0, phase=str(seq))) for seq in (0, 4, 5)]
    (run.events_folder / "rank-0.0.jsonl").write_bytes(b"".join(lines))
    reader = EventReader(run)
    assert len(reader.read()) == 3
    assert reader.missing == {"rank-0.0.jsonl": 3}


def test_a_writer_continues_after_a_killed_one(run: RunDir) -> None:
    first = run.writer("sampler")
    first.write(events.Phase(rank=0, phase="one"))
    first.close()
    path = run.events_folder / "sampler.0.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind":"pha')
    second = run.writer("sampler")
    second.write(events.Phase(rank=0, phase="two"))
    second.close()
    reader = EventReader(run)
    assert read_phases(run, reader) == ["one", "two"]
    assert not reader.missing


def test_a_line_longer_than_a_chunk_is_read_whole(run: RunDir) -> None:
    writer = run.writer("rank-0")
    writer.write(events.Phase(rank=0, phase="x" * 5000))
    writer.write(events.Phase(rank=0, phase="short"))
    writer.close()
    batches = [batch for _, batch in EventReader(run).batches(chunk_bytes=64)]
    assert [len(event.phase) for batch in batches for event in batch if isinstance(event, events.Phase)] == [
        5000,
        5,
    ]


def test_killed_and_resumed_readers_read_every_event_once(run: RunDir, tmp_path: Path) -> None:
    num_events, kills = 60_000, 12
    file = run.events_folder / "rank-0.0.jsonl"
    position_file, output_file = tmp_path / "place", tmp_path / "found"
    rng = random.Random(7)
    with subprocess.Popen([sys.executable, "-c", WRITER_CODE, str(file), str(num_events)]) as writer:
        for kill in range(kills + 1):
            with subprocess.Popen(
                [sys.executable, "-c", READER_CODE, str(run.path), str(position_file), str(output_file)]
            ) as reader:
                before = _num_lines(output_file)
                goal = num_events if kill == kills else min(num_events, before + rng.randint(1, 6000))
                wait_until(
                    lambda goal=goal: _num_lines(output_file) >= goal, deadline_s=30, what="the reader"
                )  # type: ignore[misc]
                reader.send_signal(signal.SIGKILL)
        assert writer.wait(30) == 0
    counted = Counter(output_file.read_text().splitlines())
    assert set(counted.values()) == {1}
    assert set(counted) == {f"step {step}" for step in range(1, num_events + 1)}


def _num_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_a_full_disk_drops_and_counts_lines(run: RunDir) -> None:
    """The limit on a file's size stands for the disk: writes stop in the middle of a line, as there."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = run.writer("rank-0")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
        results = [writer.write(events.Phase(rank=0, phase=f"early {step}")) for step in range(10)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert results[0] and not results[-1]
    num_dropped = results.count(False)
    assert writer.dropped == num_dropped and writer.drop_reason
    assert writer.write(events.Phase(rank=0, phase="late"))
    writer.close()

    reader = EventReader(run)
    run_events = [event for _, event in reader.read()]
    dropped = [event for event in run_events if isinstance(event, events.Dropped)]
    assert [event.lines for event in dropped] == [num_dropped]
    assert dropped[0].reason
    assert reader.missing == {"rank-0.0.jsonl": num_dropped}
    phases = [event.phase for event in run_events if isinstance(event, events.Phase)]
    assert phases == [*(f"early {step}" for step in range(results.count(True))), "late"]


def test_cursors_survive_json(run: RunDir) -> None:
    writer = run.writer("rank-0")
    writer.write(events.Phase(rank=0, phase="a"))
    reader = EventReader(run)
    reader.read()
    cursors = msgspec.json.decode(msgspec.json.encode(reader.cursors), type=dict[str, Cursor])
    writer.write(events.Phase(rank=0, phase="b"))
    writer.close()
    assert read_phases(run, EventReader(run, cursors=cursors)) == ["b"]


def test_a_new_run_is_hidden_until_its_guard_renames_it(tmp_path: Path) -> None:
    config = from_dict({"name": "Größe: GPT & friends, take 2!"}, folder=tmp_path)
    hidden = run_dir.create_run_dir(tmp_path / "runs", config, {"a": 1})
    assert run_dir.list_runs(tmp_path / "runs") == []
    final = run_dir.final_path(hidden)
    hidden.path.rename(final)
    (run,) = run_dir.list_runs(tmp_path / "runs")
    assert run.path == final and run.name[16:-5] == "größe-gpt-friends-take-2"
    assert run.config() == config
    assert run.environment() == {"a": 1}


def test_a_folder_that_cannot_hold_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("I am a file")
    with pytest.raises(ConfigError) as caught:
        run_dir.create_run_dir(tmp_path / "runs", from_dict({}, folder=tmp_path), {})
    assert caught.value.code == "runs-folder" and caught.value.advice


def test_the_outcome_follows_the_exit_record_and_the_lock(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    assert run.dir.outcome() == "running" and run.dir.is_alive()
    run.end("stopped", 130)
    assert run.dir.outcome() == "stopped" and not run.dir.is_alive()
    end = run.dir.exit_record()
    assert end is not None and end.exit_code == 130

    other = WrittenRun(tmp_path / "runs")
    other.lose()
    assert other.dir.outcome() == "lost"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"outcome": "completed"}',
        b'{"outcome": ["failed"], "exit_code": 1, "ended": 1.0}',
        b'{"outcome": "failed", "exit_code": "one", "ended": 1.0}',
        b'{"outcome": "asleep", "exit_code": 1, "ended": 1.0}',
        b'{"outcome": "failed", "exit_code": 1, "ended": ' + b"[" * 100_000,
    ],
)
def test_a_damaged_exit_record_is_ignored(tmp_path: Path, text: bytes) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.lose()
    (run.path / "end.json").write_bytes(text)
    assert run.dir.exit_record() is None and run.dir.outcome() == "lost"


def test_a_damaged_environment_is_empty(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.lose()
    (run.path / "environment.json").write_text("[1]")
    assert run.dir.environment() == {}


@pytest.fixture
def three(tmp_path: Path) -> dict[str, RunDir]:
    """Three runs of a folder, made in this order; names tell their second, so they are given here."""
    runs = {}
    for second, name in enumerate(("GPT DP", "GPT DP parallel loss", "Digits MLP")):
        written = WrittenRun(tmp_path / "runs", name)
        written.end()
        path = written.path.with_name(f"20260101-00000{second}-{run_dir.slug(name)}-00a{second}")
        written.path.rename(path)
        runs[name] = RunDir(path)
    return runs


def test_a_run_is_found_by_path_name_slug_title_part_or_last(
    three: dict[str, RunDir], tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    dp = three["GPT DP"]
    for text in (str(dp.path), dp.name, "GPT DP", "gpt-dp", "00a0"):
        assert run_dir.find_run(text, folder).path == dp.path, text
    assert run_dir.find_run("last", folder).path == three["Digits MLP"].path
    assert run_dir.find_run("parallel", folder).path == three["GPT DP parallel loss"].path


def test_an_ambiguous_name_is_refused_with_the_matches(three: dict[str, RunDir], tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError) as caught:
        run_dir.find_run("gpt", tmp_path / "runs")
    assert caught.value.code == "ambiguous-run"
    assert caught.value.advice is not None
    assert all(three[name].name in caught.value.advice for name in ("GPT DP", "GPT DP parallel loss"))


@pytest.mark.parametrize("text", ["nothing", "last", "", "/"])
def test_an_unknown_run_name_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(RunNotFoundError) as caught:
        run_dir.find_run(text, tmp_path / "runs")
    assert caught.value.advice


def test_the_index_finds_existing_runs_of_every_folder(tmp_path: Path) -> None:
    here, there = WrittenRun(tmp_path / "here", "a"), WrittenRun(tmp_path / "there", "b")
    for run in (here, there, there):
        run_dir.add_to_index(run.dir)
        run.lose()
    assert {run.path for run in run_dir.list_runs()} == {here.path, there.path}
    assert [run.path for run in run_dir.list_runs(tmp_path / "here")].count(here.path) == 1
    (here.path / "config.toml").unlink()
    assert [run.path for run in run_dir.list_runs()] == [there.path]


def test_an_unwritable_index_loses_only_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "file" / "home"))
    run = WrittenRun(tmp_path / "runs")
    run_dir.add_to_index(run.dir)
    run.lose()
    assert run_dir.list_runs() == []


def test_the_runs_folder_follows_the_variable_or_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKDECK_RUNS", str(tmp_path / "mine"))
    assert run_dir.default_runs_folder() == tmp_path / "mine"
    monkeypatch.delenv("RANKDECK_RUNS")
    monkeypatch.chdir(tmp_path)
    assert run_dir.default_runs_folder() == tmp_path / "runs"
    assert not (tmp_path / "runs").exists()


def test_a_line_that_fills_the_disk_leaves_the_event_file_readable(run: RunDir) -> None:
    """A torn part that was written is taken back, so that the next line begins on a line of its own."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = run.writer("rank-0")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
        assert not writer.write(events.Phase(rank=0, phase="x" * 200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert (run.events_folder / "rank-0.0.jsonl").stat().st_size == 0
    writer.write(events.Phase(rank=0, phase="y"))
    writer.close()
    lines = (run.events_folder / "rank-0.0.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["dropped", "phase"]


def test_a_refused_attempt_is_not_continued(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs").dir
    assert run.config_to_resume.name == "config.toml"
    for attempt, exit_code in ((1, 1), (2, 2), (3, 2)):
        assert run_dir.add_attempt(run, run.config(), {})[0] == attempt
        writer = run.writer("supervisor", attempt)
        writer.write(events.RunEnded(outcome="failed", exit_code=exit_code, attempt=attempt))
        writer.close()
        assert run.config_to_resume.name == "config.1.toml"


def test_importing_the_run_folder_imports_no_configuration() -> None:
    script = "import sys, rankdeck.run_dir; print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"


def test_a_program_that_imports_the_former_names_still_works(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.end()
    script = (
        "import sys\n"
        "from rankdeck.rundir import EventReader, RunDir, find_run, list_folder\n"
        "(run,) = list_folder(__import__('pathlib').Path(sys.argv[1]))\n"
        "print(run.end().outcome, run.config_to_go_on_with.name, EventReader(run).names())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "runs"], capture_output=True, text=True)
    assert done.stdout.startswith("completed config.toml ["), done.stderr
