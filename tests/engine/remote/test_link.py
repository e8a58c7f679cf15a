"""The pipe to a host, cut and ended in every way: what was asked for comes, once, in its order."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rankdeck.base.errors import ConfigError, MachineError, RankdeckError
from rankdeck.remote import ssh
from rankdeck.remote.clock import ClockOffset
from rankdeck.remote.host_server import HostServer
from rankdeck.remote.link import HostLink
from rankdeck.remote.remote_run import RemoteRun
from tests.helpers.fake_remote_host import FakeRemoteHost
from tests.helpers.run_writer import RunWriter, measure_lags_s, written_steps
from tests.helpers.waiting import scale_timeout, wait_until


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRemoteHost:
    return use_host(FakeRemoteHost(tmp_path), monkeypatch)


def use_host(host: FakeRemoteHost, monkeypatch: pytest.MonkeyPatch) -> FakeRemoteHost:
    for name, value in host.environment.items():
        monkeypatch.setenv(name, value)
    return host


def poll_until(link: HostLink, condition: Callable[[], object]) -> None:
    def polled() -> object:
        link.poll(0.02)
        return condition()

    wait_until(polled)


def poll_until_up(link: HostLink) -> None:
    poll_until(link, lambda: link.is_up)


def connection_error_of(host: FakeRemoteHost) -> MachineError:
    with pytest.raises(MachineError) as caught, HostLink(host.name, lambda *_: None) as link:
        poll_until_up(link)
    return caught.value


@pytest.mark.parametrize(
    ("output", "message", "advice"),
    [
        (
            "root@box1: Permission denied (publickey).",
            "does not accept SSH logins without a prompt",
            "ssh-copy-id box1",
        ),
        ("Host key verification failed.", "host key of box1 is unknown or has changed", "ssh box1"),
        (
            "ssh: Could not resolve hostname box1: Name or service not known",
            "host name box1 cannot be resolved",
            "~/.ssh/config",
        ),
        ("ssh: connect to host box1 port 22: Connection timed out", "cannot be reached", "ssh box1 true"),
        ("kex_exchange: something new\n", "kex_exchange: something new", "ssh box1 true"),
        ("", "no output", "ssh box1 true"),
    ],
)
def test_failed_connections_are_explained(
    host: FakeRemoteHost, output: str, message: str, advice: str
) -> None:
    host.refuse(output)
    error = connection_error_of(host)
    assert (error.exit_code, error.code) == (3, "no-connection")
    assert message in error.message and advice in str(error.advice)


def test_missing_and_other_versions_are_reported_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = use_host(FakeRemoteHost(tmp_path, version="0.0.9"), monkeypatch)
    error = connection_error_of(host)
    assert "box1 has rankdeck 0.0.9" in error.message and "rankdeck --host box1 install" in str(error.advice)
    (host.home / "bin" / "rankdeck").write_text("#!/bin/sh\nexit 127\n")
    assert connection_error_of(host).message == "rankdeck is not installed on box1."


def test_a_rankdeck_that_fails_to_start_is_reported_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = use_host(FakeRemoteHost(tmp_path), monkeypatch)
    (host.home / "bin" / "rankdeck").write_text("#!/bin/sh\nexit 1\n")
    (host.home / "says").write_text("Traceback\nModuleNotFoundError: No module named 'msgspec'\n")
    error = connection_error_of(host)
    message = "rankdeck on box1 exited with status 1: ModuleNotFoundError: No module named 'msgspec'."
    assert (error.message, error.code) == (message, "no-rankdeck")
    assert "rankdeck --host box1 install" in str(error.advice)


def test_a_missing_ssh_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ssh.SSH_ENV, "/nowhere/ssh")
    with pytest.raises(MachineError, match="/nowhere/ssh: No such file"):
        HostLink("box1", lambda *_: None)


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "", "a b", "a;b", "$(x)", "a\nb"])
def test_unsafe_host_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a host name"):
        ssh.serve_command(name)


def test_output_of_a_login_shell_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = use_host(FakeRemoteHost(tmp_path, banner=r"Last login: today\n{}\nunended"), monkeypatch)
    with HostLink(host.name, lambda *_: None) as link:
        poll_until_up(link)
        poll_until(link, lambda: link.clock.offset_s is not None)
        assert abs(float(link.clock.offset_s or 0.0)) < 5 and link.age_s() < 5


def test_the_clock_offset_comes_from_the_fastest_answer() -> None:
    clock = ClockOffset()
    for sent, took, back in ((100.0, 0.4, 0.0), (101.0, 0.01, 0.01), (102.0, 0.0, 2.0)):
        clock.add_sample(sent, sent + took + 60.0, sent + took + back)
    assert clock.offset_s == pytest.approx(60.0, abs=0.02)
    clock.add_sample(200.0, 270.0, 200.1)
    assert clock.offset_s == pytest.approx(69.95), "what is older than half a minute counts no more"


@pytest.fixture
def writing(host: FakeRemoteHost) -> Iterator[RunWriter]:
    writer = RunWriter(host.runs)
    yield writer
    writer.end()


def test_reconnecting_loses_and_repeats_no_events(host: FakeRemoteHost, writing: RunWriter) -> None:
    with RemoteRun(host.name, "last") as followed:
        copy = followed.copy()
        wait_until(lambda: len(written_steps(copy)) > 100)
        host.cut()
        num_steps = len(written_steps(copy))
        wait_until(lambda: followed.link.age_s() > 1.5)
        assert len(written_steps(copy)) < num_steps + 1000
        host.restore()
        wait_until(lambda: followed.link.age_s() < 1.5 and len(written_steps(copy)) > num_steps + 1000)
        host.end()
        wait_until(lambda: not followed.link.is_up)
        start_count = len(written_steps(copy))
        wait_until(lambda: followed.link.is_up and len(written_steps(copy)) > start_count)
        writing.end()
        wait_until(lambda: copy.outcome() == "completed")
        assert written_steps(copy) == list(range(1, writing.num_steps + 1))


def test_a_silent_connection_is_reopened(host: FakeRemoteHost) -> None:
    with HostLink(host.name, lambda *_: None, silence_timeout_s=1.5) as link:
        poll_until_up(link)
        relay, far = host.pids()
        host.cut()
        poll_until(link, lambda: not link.is_up)
        wait_until(lambda: not psutil.pid_exists(relay) and not psutil.pid_exists(far))
        poll_until_up(link)
        assert host.pids() != (relay, far)


def test_the_server_exits_on_silence_and_on_invalid_messages() -> None:
    for sent, silent_s in ((b"", 0.2), (b"nonsense\n", 60.0), (b'{"kind":"welcome"}\n', 60.0)):
        reads, writes = os.pipe(), os.pipe()
        os.write(reads[1], sent)
        began_s = time.monotonic()
        HostServer(reads[0], writes[1], silence_timeout_s=silent_s).run()
        assert time.monotonic() - began_s < 30
        for handle in (*reads, *writes):
            os.close(handle)


class FinishedOnPoll(subprocess.Popen[bytes]):
    """A process that speaks and ends while one asks whether it has."""

    def poll(self) -> int | None:
        return self.wait()


def test_the_last_output_of_a_command_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankdeck.remote.host_server.subprocess.Popen", FinishedOnPoll)
    reads, writes = os.pipe(), os.pipe()
    thread = threading.Thread(target=HostServer(reads[0], writes[1]).run)
    thread.start()
    os.write(reads[1], b'{"kind":"command","number":7,"argv":["--version"]}\n')
    output = b""
    while b'"ended"' not in output:
        output += os.read(writes[0], 1 << 16)
    os.close(reads[1])
    thread.join()
    assert b"rankdeck " in output.partition(b'"output"')[2]
    for handle in (reads[0], *writes):
        os.close(handle)


def test_an_unknown_remote_run_raises_the_error_of_the_host(host: FakeRemoteHost) -> None:
    with (
        pytest.raises(RankdeckError, match='There is no run called "nothing"'),
        RemoteRun(host.name, "nothing") as followed,
    ):
        followed.copy()


def test_a_second_watcher_of_a_run_has_its_own_copy(host: FakeRemoteHost, writing: RunWriter) -> None:
    with RemoteRun(host.name, "last") as first, RemoteRun(host.name, "last") as second:
        first_copy, other = first.copy(), second.copy()
        assert first_copy.path != other.path
        wait_until(lambda: len(written_steps(first_copy)) > 50 and len(written_steps(other)) > 50)
    assert [first_copy.path.exists(), other.path.exists()].count(True) == 1, "the one in its usual place"


def test_a_slow_connection_delays_events_by_less_than_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = use_host(FakeRemoteHost(tmp_path, delay_s=0.05), monkeypatch)
    writing = RunWriter(host.runs)
    try:
        with RemoteRun(host.name, "last") as followed:
            copy = followed.copy()
            wait_until(lambda: len(written_steps(copy)) > 100)
            lags_s = measure_lags_s(copy, seconds=1.0)
            assert min(lags_s) > 0.05 and sorted(lags_s)[len(lags_s) // 2] < scale_timeout(1.0)
    finally:
        writing.end()
