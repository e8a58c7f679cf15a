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
from rankdeck.remote.clock import Clock
from rankdeck.remote.following import RemoteRun
from rankdeck.remote.link import Link
from rankdeck.remote.serving import Serving
from tests.helpers.far_host import FarHost
from tests.helpers.remote_runs import Writing, lags_s, steps_in
from tests.helpers.waiting import wait_until, with_load


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FarHost:
    return reached(FarHost(tmp_path), monkeypatch)


def reached(host: FarHost, monkeypatch: pytest.MonkeyPatch) -> FarHost:
    for name, value in host.environment.items():
        monkeypatch.setenv(name, value)
    return host


def poll_until(link: Link, condition: Callable[[], object]) -> None:
    def polled() -> object:
        link.poll(0.02)
        return condition()

    wait_until(polled)


def poll_until_up(link: Link) -> None:
    poll_until(link, lambda: link.is_up)


def refusal(host: FarHost) -> MachineError:
    with pytest.raises(MachineError) as caught, Link(host.name, lambda *_: None) as link:
        poll_until_up(link)
    return caught.value


@pytest.mark.parametrize(
    ("words", "told", "advice"),
    [
        ("root@box1: Permission denied (publickey).", "does not let you in", "ssh-copy-id box1"),
        ("Host key verification failed.", "is not known here", "ssh box1"),
        (
            "ssh: Could not resolve hostname box1: Name or service not known",
            "no host called",
            "~/.ssh/config",
        ),
        ("ssh: connect to host box1 port 22: Connection timed out", "cannot be reached", "ssh box1 true"),
        ("kex_exchange: something new\n", "kex_exchange: something new", "ssh box1 true"),
        ("", "it said nothing", "ssh box1 true"),
    ],
)
def test_why_no_connection_came_about_is_said_in_words(
    host: FarHost, words: str, told: str, advice: str
) -> None:
    host.refuse(words)
    error = refusal(host)
    assert (error.exit_code, error.code) == (3, "no-connection")
    assert told in error.message and advice in str(error.advice)


def test_a_host_without_rankdeck_and_one_with_another_are_told_with_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = reached(FarHost(tmp_path, version="0.0.9"), monkeypatch)
    error = refusal(host)
    assert "box1 has rankdeck 0.0.9" in error.message and "rankdeck --host box1 install" in str(error.advice)
    (host.home / "bin" / "rankdeck").write_text("#!/bin/sh\nexit 127\n")
    assert refusal(host).message == "There is no rankdeck on box1."


def test_a_rankdeck_that_cannot_begin_says_why_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = reached(FarHost(tmp_path), monkeypatch)
    (host.home / "bin" / "rankdeck").write_text("#!/bin/sh\nexit 1\n")
    (host.home / "says").write_text("Traceback\nModuleNotFoundError: No module named 'msgspec'\n")
    error = refusal(host)
    told = "rankdeck on box1 ended with 1: ModuleNotFoundError: No module named 'msgspec'."
    assert (error.message, error.code) == (told, "no-rankdeck")
    assert "rankdeck --host box1 install" in str(error.advice)


def test_no_program_in_place_of_ssh_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ssh.PROGRAM, "/nowhere/ssh")
    with pytest.raises(MachineError, match="/nowhere/ssh: No such file"):
        Link("box1", lambda *_: None)


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "", "a b", "a;b", "$(x)", "a\nb"])
def test_a_name_that_ssh_would_take_for_more_than_a_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no name of a host"):
        ssh.command(name)


def test_whatever_a_login_prints_comes_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = reached(FarHost(tmp_path, says=r"Last login: today\n{}\nunended"), monkeypatch)
    with Link(host.name, lambda *_: None) as link:
        poll_until_up(link)
        poll_until(link, lambda: link.clock.offset_s is not None)
        assert abs(float(link.clock.offset_s or 0.0)) < 5 and link.age_s() < 5


def test_the_clock_of_a_host_is_known_by_its_quickest_answer() -> None:
    clock = Clock()
    for sent, took, back in ((100.0, 0.4, 0.0), (101.0, 0.01, 0.01), (102.0, 0.0, 2.0)):
        clock.add(sent, sent + took + 60.0, sent + took + back)
    assert clock.offset_s == pytest.approx(60.0, abs=0.02)
    clock.add(200.0, 270.0, 200.1)
    assert clock.offset_s == pytest.approx(69.95), "what is older than half a minute counts no more"


@pytest.fixture
def writing(host: FarHost) -> Iterator[Writing]:
    made = Writing(host.runs)
    yield made
    made.end()


def test_a_thousand_events_a_second_through_a_cut_and_an_end_are_all_here_once_and_in_order(
    host: FarHost, writing: Writing
) -> None:
    with RemoteRun(host.name, "last") as followed:
        copy = followed.copy()
        wait_until(lambda: len(steps_in(copy)) > 100)
        host.cut()
        seen = len(steps_in(copy))
        wait_until(lambda: followed.link.age_s() > 1.5)
        assert len(steps_in(copy)) < seen + 1000
        host.mend()
        wait_until(lambda: followed.link.age_s() < 1.5 and len(steps_in(copy)) > seen + 1000)
        host.end()
        wait_until(lambda: not followed.link.is_up)
        begun = len(steps_in(copy))
        wait_until(lambda: followed.link.is_up and len(steps_in(copy)) > begun)
        writing.end()
        wait_until(lambda: copy.outcome() == "completed")
        assert steps_in(copy) == list(range(1, writing.num_steps + 1))


def test_a_connection_that_says_nothing_is_begun_anew(host: FarHost) -> None:
    with Link(host.name, lambda *_: None, given_up_s=1.5) as link:
        poll_until_up(link)
        relay, far = host.pids()
        host.cut()
        poll_until(link, lambda: not link.is_up)
        wait_until(lambda: not psutil.pid_exists(relay) and not psutil.pid_exists(far))
        poll_until_up(link)
        assert host.pids() != (relay, far)


def test_the_far_end_leaves_when_nobody_speaks_to_it_and_when_nonsense_does() -> None:
    for sent, silent_s in ((b"", 0.2), (b"nonsense\n", 60.0), (b'{"kind":"welcome"}\n', 60.0)):
        reads, writes = os.pipe(), os.pipe()
        os.write(reads[1], sent)
        began_s = time.monotonic()
        Serving(reads[0], writes[1], silent_s=silent_s).run()
        assert time.monotonic() - began_s < 30
        for handle in (*reads, *writes):
            os.close(handle)


class EndsAtOnce(subprocess.Popen[bytes]):
    """A process that speaks and ends while one asks whether it has."""

    def poll(self) -> int | None:
        return self.wait()


def test_what_a_command_says_last_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankdeck.remote.serving.subprocess.Popen", EndsAtOnce)
    reads, writes = os.pipe(), os.pipe()
    thread = threading.Thread(target=Serving(reads[0], writes[1]).run)
    thread.start()
    os.write(reads[1], b'{"kind":"command","number":7,"argv":["--version"]}\n')
    said = b""
    while b'"ended"' not in said:
        said += os.read(writes[0], 1 << 16)
    os.close(reads[1])
    thread.join()
    assert b"rankdeck " in said.partition(b'"output"')[2]
    for handle in (reads[0], *writes):
        os.close(handle)


def test_a_run_that_nobody_knows_there_is_said_in_its_words(host: FarHost) -> None:
    with (
        pytest.raises(RankdeckError, match='There is no run called "nothing"'),
        RemoteRun(host.name, "nothing") as followed,
    ):
        followed.copy()


def test_a_second_who_watches_the_same_run_has_a_copy_of_its_own(host: FarHost, writing: Writing) -> None:
    with RemoteRun(host.name, "last") as first, RemoteRun(host.name, "last") as second:
        one, other = first.copy(), second.copy()
        assert one.path != other.path
        wait_until(lambda: len(steps_in(one)) > 50 and len(steps_in(other)) > 50)
    assert [one.path.exists(), other.path.exists()].count(True) == 1, "the one in its usual place"


def test_over_a_slow_connection_a_run_is_followed_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = reached(FarHost(tmp_path, delay_s=0.05), monkeypatch)
    writing = Writing(host.runs)
    try:
        with RemoteRun(host.name, "last") as followed:
            copy = followed.copy()
            wait_until(lambda: len(steps_in(copy)) > 100)
            seen = lags_s(copy, seconds=1.0)
            assert min(seen) > 0.05 and sorted(seen)[len(seen) // 2] < with_load(1.0)
    finally:
        writing.end()
