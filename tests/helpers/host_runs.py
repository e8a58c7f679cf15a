"""One run of several hosts, started by hand on each of them as a person without ssh does."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors.numpy import load_file

from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import RunDir, list_folder
from tests.helpers.cli import RANKDECK
from tests.helpers.host_network import NetworkHost
from tests.helpers.waiting import wait_until


class HostRun:
    """The first of the hosts is the head."""

    def __init__(self, hosts: Sequence[NetworkHost], *arguments: str, others: Sequence[str] = ()) -> None:
        self.hosts = hosts
        self._runs_before = {host.name: _run_names(host) for host in hosts}
        command = ["train", *arguments, "--hosts", str(len(hosts))]
        self._logs = [host.folder / "command.log" for host in hosts]
        self.commands = [_start(hosts[0], self._logs[0], *command, "--listen", hosts[0].address)]
        match = wait_until(lambda: re.search(r"--join (\S+)", self._logs[0].read_text()))
        for host, log in zip(hosts[1:], self._logs[1:], strict=True):
            self.commands.append(_start(host, log, *command, *others, "--join", match[1]))

    def run_on(self, index: int) -> RunDir:
        """Of the run, on a host."""
        host = self.hosts[index]
        fresh = wait_until(
            lambda: [run for run in list_folder(host.runs) if run.name not in self._runs_before[host.name]]
        )
        return fresh[0]

    def wait_for_steps(self, min_steps: int = 5) -> None:
        """Until every rank has taken some."""
        for index in range(len(self.hosts)):
            events = self.run_on(index).events_folder
            wait_until(lambda events=events: _has_steps(events, min_steps), deadline_s=60)

    def exit_codes(self, deadline_s: float = 30.0) -> list[int]:
        """Of the commands, once they have ended."""
        wait_until(
            lambda: all(process.poll() is not None for process in self.commands), deadline_s=deadline_s
        )
        return [process.returncode for process in self.commands]

    def output_of(self, index: int) -> str:
        return self._logs[index].read_text()

    def end(self) -> None:
        for process in self.commands:
            process.kill()
            process.wait()


class ClientRun(HostRun):
    """Begun on its hosts from here, over ssh; the one command is the desk's. `alone`: by --host."""

    def __init__(self, hosts: Sequence[NetworkHost], *arguments: str, alone: bool = False) -> None:
        self.hosts = hosts
        self._runs_before = {host.name: _run_names(host) for host in hosts}
        self._logs = [hosts[0].folder / "desk.log"]
        command = ["train", *arguments, "--hosts", ",".join(host.name for host in hosts)]
        if alone:
            command = ["--host", hosts[0].name, "train", *arguments]
        with self._logs[0].open("wb") as log:
            self.commands = [
                subprocess.Popen([*RANKDECK, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            ]


def _run_names(host: NetworkHost) -> set[str]:
    return {run.name for run in list_folder(host.runs)}


def _has_steps(events: Path, min_count: int) -> bool:
    return any(file.read_bytes().count(b'"kind":"steps"') >= min_count for file in events.glob("rank-*"))


def _start(host: NetworkHost, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    clean = ["env", "-i", f"HOME={host.home}", f"PATH={os.environ['PATH']}"]
    enter = ["nsenter", "-t", str(host.pid), "-n", "-m", "-u", "-i", "-p", f"--wd={host.home}"]
    command = [*enter, *clean, str(host.program), *arguments]
    with log.open("wb") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def process_titles(host: NetworkHost) -> list[str]:
    """What of Rankdeck lives there."""
    listed = host.execute("ps", "-eo", "pid,args").splitlines()
    return [line.strip() for line in listed if "rankdeck" in line]


def kill_by_title(text: str) -> Callable[[NetworkHost], None]:
    """What ends the one process of Rankdeck's on a host whose first four arguments have these words."""

    def act(host: NetworkHost) -> None:
        titles = [line.split(None, 1) for line in process_titles(host)]
        (pid,) = [pid for pid, title in titles if text in " ".join(title.split()[:4])]
        host.execute("kill", "-9", pid)

    return act


def weight_difference(run: RunDir, other: RunDir) -> float:
    """The largest difference of the final weights."""
    weights, other_weights = load_file(run.weights), load_file(other.weights)
    assert weights.keys() == other_weights.keys()
    return max(float(abs(weights[name] - other_weights[name]).max()) for name in weights)


def weight_and_loss_difference(run: RunDir, other: RunDir) -> tuple[float, float]:
    """The same, and that of the losses, which have as many steps."""
    losses = [read_run_state(each).column("loss") for each in (run, other)]
    assert len(losses[0]) == len(losses[1])
    return weight_difference(run, other), float(abs(losses[0] - losses[1]).max())
