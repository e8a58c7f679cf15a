"""What a host sends is written in the copy of its run and nowhere else, whatever it says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck.remote import synced_files, wire
from rankdeck.remote.host_server import RunFeed
from rankdeck.remote.remote_run import RunMirror
from rankdeck.run.prediction import prediction_file
from rankdeck.run_dir import RunDir
from rankdeck.run_dir.directory import PRIVATE_PREFIX
from tests.helpers.written_run import WrittenRun

HOSTILE_NAMES = (
    "../../outside",
    "/etc/passwd",
    "events/../../outside",
    "events/../config.toml",
    "events/rank-0.0.jsonl/..",
    "events/rank-0.0.jsonl\n",
    "events/rank-0.0.jsonl\x00",
    "events/rank-²0.0.jsonl",
    "events//rank-0.0.jsonl",
    "events/RANK-0.0.jsonl",
    "events",
    "",
    "guard.lock",
    "copy.lock",
    "control.sock",
    "checkpoints/1/COMMIT",
    "weights.safetensors",
    "logs/rank-0.0.sh",
    "logs/rank-99999999999.0.out",
    ".bashrc",
    "config.toml.new",
)


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[RunMirror]:
    instance = RunMirror(tmp_path / "copies", "20260101-000000-gpt-0a0a")
    yield instance
    instance.close()


def list_tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=repr)
def test_file_names_that_are_not_allowed_write_nothing(mirror: RunMirror, tmp_path: Path, name: str) -> None:
    before = list_tree(tmp_path)
    for message in (
        wire.Piece(number=0, name=name, offset=0),
        wire.Whole(number=0, name=name, last=True),
    ):
        with pytest.raises(wire.WireError):
            mirror.apply(message, b"x")
    assert list_tree(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", ".hidden", "x" * 300, "a\nb", "a\x00"], ids=repr
)
def test_run_names_that_look_like_paths_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(wire.WireError):
        RunMirror(tmp_path / "copies", name)
    assert not (tmp_path / "copies").exists()


def test_symlinks_are_not_followed(mirror: RunMirror, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (mirror.run.path / "events" / "rank-0.0.jsonl").symlink_to(outside)
    (mirror.run.path / "config.toml").symlink_to(outside)
    with pytest.raises(OSError):
        mirror.apply(wire.Piece(number=0, name="events/rank-0.0.jsonl", offset=0), b"theirs")
    mirror.apply(wire.Whole(number=0, name="config.toml", last=True), b"theirs")
    assert outside.read_text() == "mine" and not (mirror.run.path / "config.toml").is_symlink()


def test_a_fifo_is_refused_without_blocking(mirror: RunMirror) -> None:
    os.mkfifo(mirror.run.path / "logs" / "rank-0.0.out")
    with pytest.raises(OSError):
        mirror.apply(wire.Piece(number=0, name="logs/rank-0.0.out", offset=0), b"x")


def test_gaps_and_oversized_files_are_refused(mirror: RunMirror) -> None:
    with pytest.raises(wire.WireError):
        mirror.apply(wire.Piece(number=0, name="events/rank-0.0.jsonl", offset=7), b"x")
    with pytest.raises(wire.WireError):
        for _ in range(40):
            mirror.apply(wire.Whole(number=0, name="config.toml", last=False), bytes(wire.MAX_BODY_BYTES))


def test_a_run_has_one_mirror_per_folder(mirror: RunMirror, tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError):
        RunMirror(tmp_path / "copies", mirror.run.name)


def copy_updates(feed: RunFeed, mirror: RunMirror) -> int:
    """Bytes that travelled."""
    num_bytes = 0
    for message, body in feed.updates():
        assert isinstance(message, wire.Piece | wire.Whole | wire.Told)
        mirror.apply(message, body)
        num_bytes += len(body)
    return num_bytes


def has_same_files(run: RunDir, copy: RunDir) -> bool:
    names = [*synced_files.append_only_files(run.path), *synced_files.replaced_files(run.path)]
    return all((run.path / name).read_bytes() == (copy.path / name).read_bytes() for name in names)


def test_a_copy_equals_the_run_and_resumes_where_it_stopped(mirror: RunMirror, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start()
    run.write_steps(0, 1, [1.0] * 50)
    feed = RunFeed(0, run.dir, {})
    assert copy_updates(feed, mirror) > 0 and has_same_files(run.dir, mirror.run)
    assert mirror.run.outcome() == "running"
    assert copy_updates(feed, mirror) == 0, "nothing is sent twice"

    run.write_steps(0, 51, [0.5] * 50)
    run.end()
    have = {have.name: (have.size, have.checksum) for have in mirror.have_messages(0)}
    again = copy_updates(RunFeed(0, run.dir, have), mirror)
    assert has_same_files(run.dir, mirror.run) and mirror.run.outcome() == "completed"
    events = run.dir.events_folder / "rank-0.0.jsonl"
    assert again < events.stat().st_size, "what was here did not travel again"


def test_files_of_later_attempts_are_synced_and_secrets_are_not(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    prediction_file(run.dir).touch()
    run.configure("ddp", attempt=1)
    prediction_file(run.dir).touch()
    (run.path / f"{PRIVATE_PREFIX}config.toml").touch()
    names = {path.name for path in run.path.iterdir() if path.is_file()}
    assert {"plan.json", "plan.1.json", "config.1.toml"} < names
    assert set(synced_files.replaced_files(run.path)) == names - {
        f"{PRIVATE_PREFIX}config.toml",
        "guard.lock",
    }


def test_events_of_guards_and_other_hosts_are_synced(mirror: RunMirror, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start()
    writers = "guard", "guard-box2", "sampler-box2", "supervisor-box-3_a", "rank-0"
    names = [f"{writer}.0.jsonl" for writer in writers]
    for name in names:
        (run.dir.events_folder / name).write_bytes(b"{}\n")
    copy_updates(RunFeed(0, run.dir, {}), mirror)
    assert {name for name in names if (mirror.run.events_folder / name).exists()} == set(names)


def test_a_changed_file_is_copied_from_its_start(mirror: RunMirror, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start()
    run.write_steps(0, 1, [1.0] * 50)
    copy_updates(RunFeed(0, run.dir, {}), mirror)
    events = mirror.run.events_folder / "rank-0.0.jsonl"
    events.write_bytes(events.read_bytes()[:-9] + b"tampered\n")
    have = {have.name: (have.size, have.checksum) for have in mirror.have_messages(0)}
    copy_updates(RunFeed(0, run.dir, have), mirror)
    assert has_same_files(run.dir, mirror.run)
