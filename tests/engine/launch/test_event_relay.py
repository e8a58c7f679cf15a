"""What other hosts' ranks write is whole at the head; what is not theirs to tell is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankdeck.launch.event_relay import EventReceiver, EventSender


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("there", "here"):
        (tmp_path / name / "events").mkdir(parents=True)
    return tmp_path / "there", tmp_path / "here"


def test_events_arrive_unchanged_in_chunks(folders: tuple[Path, Path]) -> None:
    there, here = folders
    sender, receiver = EventSender(str(there)), EventReceiver(str(here), {"box2": range(2, 4)})
    file = there / "events" / "rank-3.0.jsonl"
    for _ in range(3):
        with file.open("ab") as events:
            events.write(os.urandom(700_000) + b"\n")
        while lines := list(sender.read_new()):
            for word in lines:
                receiver.receive("box2", word)
    assert (here / "events" / "rank-3.0.jsonl").read_bytes() == file.read_bytes()
    assert not list(sender.read_new())


def test_problems_of_supervisor_and_guard_arrive_under_the_host_name(folders: tuple[Path, Path]) -> None:
    there, here = folders
    sender, receiver = EventSender(str(there)), EventReceiver(str(here), {"box 2": range(1)})
    lines = [
        b'{"kind":"run_started"}\n',
        b'{"kind":"problem","problem":{},"seq":7}\n',
        b"nonsense\n",
        b"[" * 9000 + b"\n",
        b'{"kind":"stood_still","rank":0,"seq":9}\n',
    ]
    for name in ("supervisor", "guard"):
        (there / "events" / f"{name}.1.jsonl").write_bytes(b"".join(lines) + b"half a line")
    (there / "events" / "sampler.1.jsonl").write_bytes(b"readings")
    for word in sender.read_new():
        receiver.receive("box 2", word)
    contents = {file.name: file.read_bytes() for file in (here / "events").iterdir()}
    data = b'{"kind": "problem", "problem": {}, "seq": 0}\n'  # nothing is missing before it
    data += b'{"kind": "stood_still", "rank": 0, "seq": 1}\n'
    assert contents == {
        "supervisor-box-2.1.jsonl": data,
        "guard-box-2.1.jsonl": data,
        "sampler-box-2.1.jsonl": b"readings",
    }


def test_a_line_too_long_is_skipped_and_blocks_nothing(folders: tuple[Path, Path]) -> None:
    there, here = folders
    sender, receiver = EventSender(str(there)), EventReceiver(str(here), {"box2": range(1)})
    problem = b'{"kind": "problem", "problem": {}, "seq": %d}\n'
    file = there / "events" / "supervisor.0.jsonl"
    for text in (problem % 0, b'{"kind":"problem","message":"' + b"x" * 300_000 + b'"}\n', problem % 1):
        with file.open("ab") as events:
            events.write(text)
    with file.open("ab") as events:
        events.write(b"[" * 20_000)  # not ended yet
    for _ in range(4):
        for word in sender.read_new():
            receiver.receive("box2", word)
    assert (here / "events" / "supervisor-box2.0.jsonl").read_bytes() == problem % 0 + problem % 1
    with file.open("ab") as events:
        events.write(b"\n" + problem % 2)
    for word in sender.read_new():
        receiver.receive("box2", word)
    assert (here / "events" / "supervisor-box2.0.jsonl").read_bytes().endswith(problem % 2)


@pytest.mark.parametrize(
    "word",
    [
        {"file": "rank-0.0.jsonl", "data": "x"},
        {"file": "rank-4.0.jsonl", "data": "x"},
        {"file": "../rank-2.0.jsonl", "data": "x"},
        {"file": "rank-2.0.jsonl/../x", "data": "x"},
        {"file": "config.toml", "data": "x"},
        {"file": "rank-2.0.jsonl\n", "data": "x"},
        {"file": 7, "data": "x"},
        {"file": "rank-2.0.jsonl", "data": 7},
        {},
    ],
)
def test_files_of_other_ranks_are_not_written(folders: tuple[Path, Path], word: dict[str, object]) -> None:
    _, here = folders
    EventReceiver(str(here), {"box2": range(2, 4)}).receive("box2", word)
    EventReceiver(str(here), {}).receive("box3", {"file": "rank-2.0.jsonl", "data": "x"})
    assert not list((here / "events").iterdir()) and not (here / "rank-2.0.jsonl").exists()


def test_a_link_in_place_of_an_events_file_is_not_followed(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    _, here = folders
    (tmp_path / "elsewhere").write_text("mine")
    (here / "events" / "rank-2.0.jsonl").symlink_to(tmp_path / "elsewhere")
    EventReceiver(str(here), {"box2": range(2, 4)}).receive("box2", {"file": "rank-2.0.jsonl", "data": "x"})
    assert (tmp_path / "elsewhere").read_text() == "mine"
