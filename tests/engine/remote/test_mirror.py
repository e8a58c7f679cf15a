"""What a host sends is written in the copy of its run and nowhere else, whatever it says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck.remote import travelling, wire
from rankdeck.remote.following import Mirror
from rankdeck.remote.serving import RunFeed
from rankdeck.run.prediction import prediction_file
from rankdeck.rundir import RunDir
from rankdeck.rundir.directory import PRIVATE
from tests.helpers.written_run import WrittenRun

HOSTILE = (
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
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    made = Mirror(tmp_path / "copies", "20260101-000000-gpt-0a0a")
    yield made
    made.close()


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_a_name_that_is_not_in_the_list_writes_nothing(mirror: Mirror, tmp_path: Path, name: str) -> None:
    before = tree(tmp_path)
    for message in (
        wire.Piece(number=0, name=name, offset=0),
        wire.Whole(number=0, name=name, last=True),
    ):
        with pytest.raises(wire.WireError):
            mirror.take(message, b"x")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", ".hidden", "x" * 300, "a\nb", "a\x00"], ids=repr
)
def test_a_run_that_is_called_like_a_path_is_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(wire.WireError):
        Mirror(tmp_path / "copies", name)
    assert not (tmp_path / "copies").exists()


def test_no_link_is_followed(mirror: Mirror, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (mirror.run.path / "events" / "rank-0.0.jsonl").symlink_to(outside)
    (mirror.run.path / "config.toml").symlink_to(outside)
    with pytest.raises(OSError):
        mirror.take(wire.Piece(number=0, name="events/rank-0.0.jsonl", offset=0), b"theirs")
    mirror.take(wire.Whole(number=0, name="config.toml", last=True), b"theirs")
    assert outside.read_text() == "mine" and not (mirror.run.path / "config.toml").is_symlink()


def test_nor_a_fifo_waited_for(mirror: Mirror) -> None:
    os.mkfifo(mirror.run.path / "logs" / "rank-0.0.out")
    with pytest.raises(OSError):
        mirror.take(wire.Piece(number=0, name="logs/rank-0.0.out", offset=0), b"x")


def test_a_piece_that_is_missing_and_a_file_that_is_too_large_are_refused(mirror: Mirror) -> None:
    with pytest.raises(wire.WireError):
        mirror.take(wire.Piece(number=0, name="events/rank-0.0.jsonl", offset=7), b"x")
    with pytest.raises(wire.WireError):
        for _ in range(40):
            mirror.take(wire.Whole(number=0, name="config.toml", last=False), bytes(wire.MAX_BODY_BYTES))


def test_two_do_not_copy_one_run_into_the_same_folder(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError):
        Mirror(tmp_path / "copies", mirror.run.name)


def copied(feed: RunFeed, mirror: Mirror) -> int:
    """Bytes that travelled."""
    num_bytes = 0
    for message, body in feed.news():
        assert isinstance(message, wire.Piece | wire.Whole | wire.Told)
        mirror.take(message, body)
        num_bytes += len(body)
    return num_bytes


def same_files(run: RunDir, copy: RunDir) -> bool:
    names = [*travelling.growing_files(run.path), *travelling.whole_files(run.path)]
    return all((run.path / name).read_bytes() == (copy.path / name).read_bytes() for name in names)


def test_a_copy_is_the_run_and_goes_on_where_it_was(mirror: Mirror, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.begin()
    run.steps(0, 1, [1.0] * 50)
    feed = RunFeed(0, run.dir, {})
    assert copied(feed, mirror) > 0 and same_files(run.dir, mirror.run)
    assert mirror.run.outcome() == "running"
    assert copied(feed, mirror) == 0, "nothing is sent twice"

    run.steps(0, 51, [0.5] * 50)
    run.end()
    have = {have.name: (have.size, have.checksum) for have in mirror.have(0)}
    again = copied(RunFeed(0, run.dir, have), mirror)
    assert same_files(run.dir, mirror.run) and mirror.run.outcome() == "completed"
    events = run.dir.events_folder / "rank-0.0.jsonl"
    assert again < events.stat().st_size, "what was here did not travel again"


def test_what_an_attempt_brought_along_travels_and_secrets_stay(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    prediction_file(run.dir).touch()
    run.configure("ddp", attempt=1)
    prediction_file(run.dir).touch()
    (run.path / f"{PRIVATE}config.toml").touch()
    names = {path.name for path in run.path.iterdir() if path.is_file()}
    assert {"plan.json", "plan.1.json", "config.1.toml"} < names
    assert set(travelling.whole_files(run.path)) == names - {f"{PRIVATE}config.toml", "guard.lock"}


def test_what_guards_and_other_hosts_tell_travels_too(mirror: Mirror, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.begin()
    writers = "guard", "guard-box2", "sampler-box2", "supervisor-box-3_a", "rank-0"
    told = [f"{writer}.0.jsonl" for writer in writers]
    for name in told:
        (run.dir.events_folder / name).write_bytes(b"{}\n")
    copied(RunFeed(0, run.dir, {}), mirror)
    assert {name for name in told if (mirror.run.events_folder / name).exists()} == set(told)


def test_another_file_of_the_same_name_is_copied_from_its_beginning(mirror: Mirror, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.begin()
    run.steps(0, 1, [1.0] * 50)
    copied(RunFeed(0, run.dir, {}), mirror)
    events = mirror.run.events_folder / "rank-0.0.jsonl"
    events.write_bytes(events.read_bytes()[:-9] + b"tampered\n")
    have = {have.name: (have.size, have.checksum) for have in mirror.have(0)}
    copied(RunFeed(0, run.dir, have), mirror)
    assert same_files(run.dir, mirror.run)
