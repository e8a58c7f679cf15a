"""Whatever the other hosts of a run say, its guard says in words why the run does not begin, and ends."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from rankdeck.config import from_dict
from rankdeck.launch.coordinator_guard import CoordinatorGuard
from rankdeck.launch.exit_record import phrase
from rankdeck.launch.host_guard import REMOVED_TEXT
from rankdeck.launch.multi_host_role import MultiHostRole
from rankdeck.launch.start import start_run
from rankdeck.run_dir import RunDir
from tests.helpers import launching
from tests.helpers.launching import FAKE_WORKER
from tests.helpers.waiting import wait_until

_TABLES = {"strategy": {"use": "ddp"}, "devices": {"use": "cpu:1"}, "data": {"use": "digits"}}


def start_coordinator_run(tmp_path: Path, several: MultiHostRole) -> RunDir:
    config = from_dict({**_TABLES, "model": {"use": "mlp"}}, folder=tmp_path)
    return start_run(
        config,
        runs=tmp_path / "runs",
        detach=True,
        command_line=["test"],
        started=time.time(),
        worker=str(FAKE_WORKER),
        multi_host_role=several,
    )


@pytest.fixture
def coordinator_run(tmp_path: Path) -> Iterator[tuple[RunDir, dict[str, Any], tuple[str, int]]]:
    """A head that waits for one more; what that has to say, and where."""
    several = MultiHostRole.as_coordinator(2, "127.0.0.1")
    run = start_coordinator_run(tmp_path, several)
    assert several.listener is not None and several.listener.fileno() == -1, "the guard listens alone"
    host_spec = MultiHostRole(2, "", coordinator_address=several.listen_address).hosts_spec(run.config(), [])[
        "own"
    ]
    yield (
        run,
        {"word": "hello", "name": "box2", "secret": several.secret, **host_spec},
        several.listen_address,
    )
    wait_until(lambda: not run.is_alive())


def join_and_leave(at: tuple[str, int], hello: dict[str, Any]) -> None:
    """Say it, and leave when the head says that it is over."""
    with socket.create_connection(at) as host, host.makefile() as lines:
        host.sendall(json.dumps(hello).encode() + b"\n")
        assert any('"end"' in line for line in lines)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": None},
        {"ranks": "two"},
        {"ranks": 0, "devices": []},
        {"ranks": 2, "devices": [{}]},
        {"ranks": 1, "devices": {}},
    ],
)
def test_an_invalid_hello_of_a_host_ends_the_start_with_a_message(
    coordinator_run: tuple[RunDir, dict[str, Any], tuple[str, int]], wrong: dict[str, Any]
) -> None:
    run, hello, at = coordinator_run
    join_and_leave(at, {**hello, "ranks": 1, "devices": [{}], **wrong})
    end = wait_until(run.exit_record)
    assert (end.outcome, end.exit_code) == ("failed", 1)
    assert end.reason == "box2 sent invalid information about itself."


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"torch": "1.0"}, "box2 has torch 1.0, but this host has "),
        ({"nccl": "2.27.5"}, "box2 has NCCL 2.27.5, but this host has ?."),
        ({"lock": "another"}, "The lock files of box2 and this host differ. "),
    ],
)
def test_a_host_with_other_versions_is_refused_with_a_message(
    coordinator_run: tuple[RunDir, dict[str, Any], tuple[str, int]], other: dict[str, str], reason: str
) -> None:
    run, hello, at = coordinator_run
    join_and_leave(at, {**hello, "ranks": 1, "devices": [{}], **other})
    end = wait_until(run.exit_record)
    assert (end.reason or "").startswith(reason)
    assert not launching.read_problems(run)


def test_a_coordinator_killed_for_a_failed_host_names_that_host(
    coordinator_run: tuple[RunDir, dict[str, Any], tuple[str, int]],
) -> None:
    run, hello, at = coordinator_run
    device = {"index": 0, "name": "Virtual 0", "kind": "virtual"}
    with socket.create_connection(at) as host, host.makefile() as lines:

        def send(*messages: dict[str, Any]) -> None:
            host.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages) or b"\n")

        def beats_until(condition: Callable[[], object]) -> None:
            wait_until(lambda: (send(), condition())[1], interval_s=0.2, deadline_s=30)

        send({**hello, "ranks": 1, "devices": [device], "attempt": 0})
        assert any('"begin"' in line for line in lines)
        beats_until((run.events_folder / "supervisor.0.jsonl").exists)
        send({"word": "ended", "status": 1, "reason": "rank 1: no such layer"})
        supervisor = next(iter(psutil.Process(launching.guard_pid(run)).children()))
        beats_until(lambda: not supervisor.is_running())
        send({"word": "left"})
        ends = [json.loads(line) for line in lines if '"end"' in line]
        assert {(message["because"], message["why"]) for message in ends} == {
            ("box2", "rank 1: no such layer")
        }
    end = wait_until(run.exit_record)
    assert (end.outcome, end.reason) == ("failed", "box2: rank 1: no such layer")


def test_removing_the_coordinators_folder_is_reported_to_all_hosts(
    coordinator_run: tuple[RunDir, dict[str, Any], tuple[str, int]],
) -> None:
    run, hello, at = coordinator_run
    device, data = {"index": 0, "name": "Virtual 0", "kind": "virtual"}, bytearray()
    with socket.create_connection(at) as host:
        host.settimeout(0.1)

        def has_said(word: bytes) -> bool:
            host.sendall(b"\n")
            with suppress(TimeoutError):
                data.extend(host.recv(1 << 16))
            return word in data

        host.sendall(json.dumps({**hello, "ranks": 1, "devices": [device], "attempt": 0}).encode())
        wait_until(lambda: has_said(b'"begin"'), deadline_s=30)
        supervisor = wait_until(lambda: psutil.Process(launching.guard_pid(run)).children(), deadline_s=30)[0]
        shutil.rmtree(run.path, ignore_errors=True)
        wait_until(lambda: has_said(b'"end"'), deadline_s=30)
    message = next(json.loads(line) for line in data.splitlines() if b'"end"' in line)
    assert message["why"] == "The run's folder was removed while the run was in progress."
    wait_until(lambda: not supervisor.is_running())


def test_a_node_ends_with_the_coordinators_reason(tmp_path: Path) -> None:
    message = {"word": "end", "because": "box1", "why": str(REMOVED_TEXT)}
    with socket.create_server(("127.0.0.1", 0)) as server:
        run = start_coordinator_run(
            tmp_path, MultiHostRole(2, "secret", coordinator_address=server.getsockname())
        )
        guard, _ = server.accept()
        with guard:
            assert guard.makefile().readline()
            guard.sendall(json.dumps(message).encode() + b"\n")
            end = wait_until(run.exit_record)
    assert (end.outcome, end.reason) == ("failed", f"box1: {REMOVED_TEXT}")
    wait_until(lambda: not run.is_alive())


def test_a_lost_host_stays_the_cause_when_a_restart_is_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head then kills its own ranks, and their end is nobody's cause."""
    monkeypatch.setattr("rankdeck.launch.coordinator_guard.LEAVE_TIMEOUT_S", 0.0)
    messages: list[dict[str, Any]] = []
    there = SimpleNamespace(broadcast=messages.append, connected_names={"box2"}, num_connected=1)
    guard = SimpleNamespace(
        lost_host_reason=phrase("box3 has gone."), _status=-9, _server=there, _end_messages={},
        _is_stop_requested=False, _restart_reason=lambda: None,
        _end_others=lambda: messages.append({"word": "end", "because": "box1"}),
    )  # fmt: skip
    assert not CoordinatorGuard.start_next_attempt(cast("CoordinatorGuard", guard))
    assert messages == [{"word": "over"}]


@pytest.mark.parametrize(("others", "message"), [(0, "with 1 host from"), (2, "with 3 hosts from")])
def test_the_restart_message_counts_the_hosts(others: int, message: str) -> None:
    guard = SimpleNamespace(_server=SimpleNamespace(num_connected=others), num_restarts=0, _max_restarts=1)
    assert message in CoordinatorGuard._restart_message(
        cast("CoordinatorGuard", guard), phrase("box2 has gone.")
    )


@pytest.mark.parametrize(
    "message",
    [
        {"word": "begin"},
        {"word": "begin", "hosts": 7},
        {"word": "begin", "hosts": [{}]},
        {"word": "begin", "hosts": [{"name": "another", "ranks": 1}], "store": ["127.0.0.1", 1]},
        {"word": "refused"},
    ],
)
def test_an_invalid_layout_from_the_coordinator_ends_the_start(
    tmp_path: Path, message: dict[str, Any]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        run = start_coordinator_run(
            tmp_path, MultiHostRole(2, "secret", coordinator_address=server.getsockname())
        )
        guard, _ = server.accept()
        with guard:
            assert json.loads(guard.makefile().readline())["ranks"] == 1
            guard.sendall(json.dumps(message).encode() + b"\n")
            end = wait_until(run.exit_record)
    assert end.outcome == "failed"
    assert (end.reason or "").startswith(
        ("The coordinator sent an invalid host layout", "The run's coordinator rejected")
    )
    wait_until(lambda: not run.is_alive())
