"""The transport over real connections: what a person does with another host, and what cuts do to it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rankdeck as rankdeck_here
from rankdeck.base.errors import MachineError
from rankdeck.remote.link import HostLink
from rankdeck.remote.remote_run import RemoteRun
from tests.helpers.cli import rankdeck
from tests.helpers.host_network import HostNetwork
from tests.helpers.run_writer import RunWriter, written_steps
from tests.helpers.waiting import wait_until

_SHORT = ("train", "digits-mlp", "--set", "train.steps=20", "--devices", "cpu:1")


def test_a_run_on_a_host_is_trained_and_shown(network: HostNetwork) -> None:
    box = network.hosts["box1"]
    trained = rankdeck("--host", "box1", *_SHORT, "--json", exit_code=0).json
    assert trained["outcome"] == "completed" and trained["steps"] == 20
    (run,) = box.runs.iterdir()
    assert run.name == trained["run"] and (run / "weights.safetensors").exists()
    facts = rankdeck("--host", "box1", "show", "last", "--json", exit_code=0).json
    assert facts["loss"] == trained["loss"] and facts["path"] == str(run)
    assert "There are no runs yet" in rankdeck("--host", "box2", "runs", exit_code=0).err
    assert rankdeck("--host", "box2", "--version", exit_code=0).out.startswith("rankdeck ")


@pytest.mark.parametrize(
    "cut_s", [1.0, *(pytest.param(seconds, marks=pytest.mark.slow) for seconds in (6.0, 20.0, 60.0))]
)
def test_a_network_cut_loses_and_repeats_no_events(network: HostNetwork, cut_s: float) -> None:
    box = network.hosts["box1"]
    writing = RunWriter(box.runs)
    try:
        with RemoteRun("box1", "last") as followed:
            copy = followed.copy()
            wait_until(lambda: len(written_steps(copy)) > 500)
            box.unplug()
            began_s = time.monotonic()
            wait_until(lambda: time.monotonic() - began_s > cut_s, deadline_s=cut_s + 5, interval_s=0.1)
            num_steps = len(written_steps(copy))
            assert followed.link.age_s() > cut_s - 1.5 and num_steps < writing.num_steps
            box.plug_in()
            wait_until(
                lambda: len(written_steps(copy)) > num_steps + 1000 and followed.link.age_s() < 3,
                deadline_s=60,
            )
            writing.end()
            wait_until(lambda: copy.outcome() == "completed", deadline_s=30)
            assert written_steps(copy) == list(range(1, writing.num_steps + 1))
    finally:
        writing.end()


def connection_error_of(name: str) -> MachineError:
    with pytest.raises(MachineError) as caught, HostLink(name, lambda *_: None) as link:
        _poll_until(link, lambda: link.is_up, deadline_s=40)
    return caught.value


def _poll_until(link: HostLink, condition: Callable[[], object], deadline_s: float = 10) -> None:
    def polled() -> object:
        link.poll(0.05)
        return condition()

    wait_until(polled, deadline_s=deadline_s)


def test_ssh_errors_are_explained(network: HostNetwork) -> None:
    box, other = network.hosts["box1"], network.hosts["box2"]
    assert "The host name nowhere cannot be resolved" in connection_error_of("nowhere").message
    box.program.unlink()
    assert connection_error_of("box1").message == "rankdeck is not installed on box1."
    (box.folder / "authorized").write_text("")
    _close_shared_connection(box.name)
    assert "does not accept SSH logins without a prompt" in connection_error_of("box1").message
    known_hosts = network.folder / "known_hosts"
    known_hosts.write_text(
        "".join(line for line in known_hosts.read_text().splitlines(True) if "box2" not in line)
    )
    assert "is unknown or has changed" in connection_error_of("box2").message
    other.power_off()
    network_is_gone = connection_error_of("box2").message
    assert "box2 cannot be reached" in network_is_gone


def _close_shared_connection(name: str) -> None:
    from rankdeck.remote import ssh

    ssh.close_shared_connection(name)


def test_links_share_one_connection_and_servers_exit_with_them(network: HostNetwork) -> None:
    box = network.hosts["box1"]
    links = []
    try:
        for _ in range(3):
            links.append(HostLink("box1", lambda *_: None))
            _poll_until(links[-1], lambda: links[-1].is_up)
    except BaseException:
        for link in links:
            link.close()
        raise
    assert _count_processes(box.execute("ps", "-eo", "args"), "serve --stdio") == 3
    assert (box.folder / "sshd.log").read_text().count("Accepted publickey") == 1
    for link in links:
        link.close()
    wait_until(lambda: not _count_processes(box.execute("ps", "-eo", "args"), "serve --stdio"))


def _count_processes(listed: str, pattern: str) -> int:
    return sum(pattern in line for line in listed.splitlines())


@pytest.mark.slow
def test_install_uses_libraries_that_the_host_already_has(network: HostNetwork) -> None:
    """The host's environment sees this one's libraries: nothing is downloaded."""
    box = network.hosts["box1"]
    box.program.unlink()
    environment = box.home / ".local" / "share" / "rankdeck"
    box.execute(sys.executable, "-m", "venv", str(environment))
    (here,) = {path for path in map(Path, sys.path) if path.name == "site-packages"}
    (their,) = environment.glob("lib/python*/site-packages")
    box.execute(
        str(environment / "bin" / "python"), "-m", "pip", "uninstall", "--yes", "setuptools"
    )  # an older one
    (their / "libraries.pth").write_text(f"{here}\n")
    refusal = rankdeck("--host", "box1", "runs", exit_code=3)
    assert (
        "rankdeck is not installed on box1." in refusal.err and "rankdeck --host box1 install" in refusal.err
    )
    done = rankdeck("--host", "box1", "install", "--no-index", exit_code=0)
    assert done.err.splitlines()[-1] == f"box1 now has rankdeck {rankdeck_here.__version__}."
    output = box.execute(
        str(environment / "bin" / "python"), "-P", "-c", "import rankdeck; print(rankdeck.__file__)"
    )
    assert Path(output.strip()).is_relative_to(their)
    assert rankdeck("--host", "box1", *_SHORT, "--json", exit_code=0).json["outcome"] == "completed"
    refused = rankdeck("--host", "box1", "install", "--python", "/nowhere/python", exit_code=3)
    assert "could not be installed on box1" in refused.err
