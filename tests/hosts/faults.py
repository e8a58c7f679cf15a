"""Faults of a run over three hosts, one in each trial: the host, the step and whether the run may go on are
drawn from a seed. What is right is said in __main__.py.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.checkpoint_files import newest_intact
from rankdeck.cli.wait import EXIT_INTERRUPTED
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import EventReader, RunDir, list_folder
from tests.helpers import launching
from tests.helpers.cli import rankdeck
from tests.helpers.host_network import HostNetwork, NetworkHost
from tests.helpers.host_runs import ClientRun, HostRun, kill_by_title, process_titles, weight_difference
from tests.helpers.waiting import scale_timeout, wait_until
from tests.hosts.refused import REFUSED, run_refused_job

NAMES = ("box1", "box2", "box3")
EXIT_TIMEOUT_S = 15.0
END_TIMEOUT_S = 60.0
_JOB = ("digits-mlp", "--strategy", "ddp", "--devices", "cpu:1")
_JOB = (*_JOB, "--set", "train.evaluate_every=0", "--set", "train.global_batch=48")
_LONG = (*_JOB, "--set", "train.steps=1000000", "--set", "train.checkpoint_every=0")
_LONG = (*_LONG, "--set", "launch.timeout_s=12")
_NUM_STEPS = 300
_RESTART_JOB = (*_JOB, "--set", f"train.steps={_NUM_STEPS}", "--set", "train.checkpoint_every=25")
_RESTART_JOB = (*_RESTART_JOB, "--set", "launch.max_restarts=1", "--set", "hosts.min=2")
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
_WEIGHT_TOLERANCE, _MAX_SPREAD_S = 2e-6, 5.0


class Trial(msgspec.Struct, omit_defaults=True):
    """What one came to. `wrong`: what is not as it must be, nothing where it is right."""

    seed: int
    kind: str
    host: str
    step: int
    goes_on: bool
    outcome: str = ""
    code: str = ""
    message: str = ""
    gone_s: float | None = None
    took_s: float = 0.0
    wrong: list[str] = []


@dataclass(frozen=True)
class FatalFault:
    """`inject` makes it on a host. `expected_text` are in what is told of it, on the head, or on the others
    where it was the head's. A run may get over each with a restart, without the host where that is gone as a
    whole, but not over what `is_final`.
    """

    inject: Callable[[HostNetwork, NetworkHost], None]
    code: str
    expected_text: tuple[str, ...]
    affects_host: bool = False
    undo: Callable[[HostNetwork, NetworkHost], None] = lambda network, host: None
    is_final: bool = False
    exit_timeout_s: float = EXIT_TIMEOUT_S


@dataclass(frozen=True)
class HarmlessFault:
    """What changes nothing but what is seen. `is_before_start`: it is there from the beginning on;
    `from_client`: the run was begun from there."""

    inject: Callable[[HostNetwork, NetworkHost, random.Random], None]
    is_before_start: bool = False
    from_client: bool = False
    steps: int = _NUM_STEPS
    undo: Callable[[HostNetwork, NetworkHost], None] = lambda network, host: None


def _signal_all(signal: str) -> Callable[[HostNetwork, NetworkHost], None]:
    """To all that runs on a host but its sshd."""
    return lambda network, host: _execute(host, "sh", "-c", f"kill -{signal} -1; true")


def _execute(host: NetworkHost, *command: str) -> None:
    host.execute(*command)


def _kill(title: str) -> Callable[[HostNetwork, NetworkHost], None]:
    return lambda network, host: kill_by_title(title)(host)


def _remove_part(network: HostNetwork, host: NetworkHost) -> None:
    newest = max(list_folder(host.runs), key=lambda run: run.path.stat().st_mtime)
    shutil.rmtree(newest.path, ignore_errors=True)


def _cut_client(network: HostNetwork, host: NetworkHost, choose: random.Random) -> None:
    network.run_at_switch("ip", "link", "set", "desk", "down")
    time.sleep(choose.uniform(0.5, 8.0))
    network.run_at_switch("ip", "link", "set", "desk", "up")


def _shift_clock(network: HostNetwork, host: NetworkHost, choose: random.Random) -> None:
    shift = choose.choice((-300, -60, 60, 3600))
    host.configure(LD_PRELOAD=str(FAKETIME), FAKETIME=f"{shift:+d}")


FATAL_FAULTS = {
    "a rank is killed": FatalFault(_kill("rankdeck rank"), "rank-killed", ("SIGKILL", "{host}")),
    "a supervisor is killed": FatalFault(
        _kill("launch.supervisor"), "supervisor-lost", ("SIGKILL", "{host}")
    ),
    "a guard is killed": FatalFault(
        _kill("rankdeck guard"),
        "host-lost",
        ("{called}", "closed its connection"),
        affects_host=True,
    ),
    "a host has no power": FatalFault(
        lambda network, host: host.power_off(),
        "host-lost",
        ("{called}", "closed its connection"),
        affects_host=True,
        undo=lambda network, host: host.boot(),
    ),
    "a host's cable is pulled": FatalFault(
        lambda network, host: host.unplug(),
        "host-lost",
        ("{called}", "not responded for 5 s"),
        affects_host=True,
        undo=lambda network, host: host.plug_in(),
    ),
    "everything on a host is stopped": FatalFault(
        _signal_all("STOP"),
        "host-lost",
        ("{called}", "not responded for 5 s"),
        affects_host=True,
        undo=_signal_all("CONT"),
    ),
    "a part's folder is removed": FatalFault(
        _remove_part, "run-folder", ("{host}", "folder was removed"), is_final=True
    ),
    "a network loses large packets": FatalFault(
        lambda network, host: host.drop_large_packets(),
        "hang",
        ("the network between", "{host}"),
        undo=lambda network, host: host.pass_large_packets(),
        is_final=True,
        exit_timeout_s=45.0,
    ),
}
HARMLESS_FAULTS = {
    "a sampler is killed": HarmlessFault(
        lambda network, host, choose: kill_by_title("telemetry.sampler")(host)
    ),
    "a pipe's far end is killed": HarmlessFault(
        lambda network, host, choose: _execute(network.hosts[NAMES[0]], "pkill", "-9", "-f", "serve --stdio"),
        from_client=True,
        steps=500,
    ),
    "the desk is cut off": HarmlessFault(_cut_client, from_client=True, steps=500),
    "a network of 200 ms that loses 5 %": HarmlessFault(
        lambda network, host, choose: network.slow_down(100, 5.0),
        is_before_start=True,
        steps=4,
        undo=lambda network, host: network.speed_up(),
    ),
    "a clock is off": HarmlessFault(
        _shift_clock, is_before_start=True, undo=lambda network, host: host.configure()
    ),
}
CANCELLATIONS = {"Ctrl-C thrice while it trains": False, "Ctrl-C thrice while it begins": True}
KINDS = (*FATAL_FAULTS, *HARMLESS_FAULTS, *CANCELLATIONS, *REFUSED)


class TrialRunner:
    """On one network, one after another."""

    def __init__(self, network: HostNetwork, folder: Path) -> None:
        self._network, self._folder = network, folder
        self._reference_runs: dict[int, RunDir] = {}

    def run_trial(self, seed: int, name: str) -> Trial:
        choose, began_s = random.Random(f"{seed} {name}"), time.monotonic()
        drawn = choose.choice(NAMES), choose.randrange(5, 60), choose.random() < 1 / 3
        trial = Trial(seed, name, *drawn)
        host = self._network.hosts[trial.host]
        kind = FATAL_FAULTS.get(name) or HARMLESS_FAULTS.get(name)
        try:
            if isinstance(kind, FatalFault):
                self._run_fatal_fault(trial, kind, host)
            elif kind is not None:
                self._run_harmless_fault(trial, kind, host, choose)
            elif name in CANCELLATIONS:
                self._run_cancellation(trial, choose, is_starting=CANCELLATIONS[name])
            else:
                self._run_refusal(trial, host)
        except Exception as error:
            trial.wrong.append(f"{type(error).__name__}: {str(error)[:1000]}")
        finally:
            if kind is not None:
                kind.undo(self._network, host)
        self._check_leftovers(trial)
        trial.took_s = round(time.monotonic() - began_s, 1)
        return trial

    def _check_leftovers(self, trial: Trial) -> None:
        """Whatever still lives had `EXIT_TIMEOUT_S` since the fault, or since its host is back."""
        for host in self._network.hosts.values():
            try:
                wait_until(lambda host=host: not process_titles(host), deadline_s=EXIT_TIMEOUT_S)
            except AssertionError:
                trial.wrong.append(f"left on {host.name}: {process_titles(host)}")
                _execute(host, "pkill", "-9", "-f", "rankdeck")

    def _run_fatal_fault(self, trial: Trial, kind: FatalFault, host: NetworkHost) -> None:
        is_head = host.name == NAMES[0]
        trial.goes_on = trial.goes_on and not (is_head and kind.affects_host) and not kind.is_final
        run = HostRun([*self._network.hosts.values()], *(_RESTART_JOB if trial.goes_on else _LONG))
        try:
            if trial.goes_on:
                saved = run.run_on(0).checkpoints_folder
                wait_until(lambda: newest_intact(saved)[0], deadline_s=END_TIMEOUT_S, what="a checkpoint")
            _wait_for_step(run, trial.step)
            fault_s = time.monotonic()
            kind.inject(self._network, host)
            # Of a head that is gone the others tell.
            is_gone = kind.affects_host or kind.code == "run-folder"
            reporting = run.run_on(int(is_head and is_gone))
            wait_until(lambda: reporting.exit_record() is not None, deadline_s=END_TIMEOUT_S, what="the end")
            if not trial.goes_on:
                self._wait_for_other_hosts(trial, kind, host, fault_s)
            trial.outcome = reporting.outcome()
            self._check_report(trial, kind, host, reporting)
        except AssertionError:
            trial.wrong += [
                f"{run_host.name} said: {run.output_of(at)[-600:]}" for at, run_host in enumerate(run.hosts)
            ]
            raise
        finally:
            run.end()

    def _wait_for_other_hosts(
        self, trial: Trial, kind: FatalFault, host: NetworkHost, fault_s: float
    ) -> None:
        hosts = [
            other for other in self._network.hosts.values() if other is not host or not kind.affects_host
        ]
        limit_s = scale_timeout(kind.exit_timeout_s)
        while any(map(process_titles, hosts)) and time.monotonic() < fault_s + limit_s + 1:
            time.sleep(0.05)
        trial.gone_s = round(time.monotonic() - fault_s, 1)
        if trial.gone_s > limit_s:
            trial.wrong.append(f"gone after {trial.gone_s} s")

    def _check_report(self, trial: Trial, kind: FatalFault, host: NetworkHost, reporting: RunDir) -> None:
        errors = [problem for problem in read_run_state(reporting).problems if problem.severity == "error"]
        expected = "completed" if trial.goes_on else "failed"
        if trial.outcome != expected:
            trial.wrong.append(f"outcome {trial.outcome}, and not {expected}")
        warnings = [
            problem
            for problem in launching.read_problems(reporting, "warning")
            if problem.code == "restarted"
        ]
        reported = warnings if trial.goes_on else errors
        if kind.code == "run-folder" and host.name == NAMES[0]:  # whose folder had the problem
            end = reporting.exit_record()
            trial.message = str(end.reason if end is not None else "")
            self._check_message(trial, kind, host)
            return
        if len(reported) != 1 or (trial.goes_on and errors):
            trial.wrong.append(f"told: {_summarize([*errors, *warnings])}")
        if not reported:
            return
        trial.code, trial.message = reported[0].code, str(reported[0].headline())
        if reported[0].code != ("restarted" if trial.goes_on else kind.code):
            trial.wrong.append(f"code {reported[0].code}")
        self._check_message(trial, kind, host)
        if trial.goes_on:
            _check_steps(trial, reporting, _NUM_STEPS)
        elif kind.code == "rank-killed" and reported[0].host != host.name:
            trial.wrong.append(f"rank {reported[0].rank} on {reported[0].host} is told")

    def _check_message(self, trial: Trial, kind: FatalFault, host: NetworkHost) -> None:
        called = (
            f"The coordinator ({host.address})" if host.name == NAMES[0] else f"{host.name} ({host.address})"
        )
        for word in kind.expected_text:
            if (word := word.format(host=host.name, called=called)) not in trial.message:
                trial.wrong.append(f"{word!r} is not told: {trial.message[:300]}")

    def _run_harmless_fault(
        self, trial: Trial, kind: HarmlessFault, host: NetworkHost, choose: random.Random
    ) -> None:
        steps = ("--set", f"train.steps={kind.steps}", "--set", "train.checkpoint_every=0")
        trial.goes_on = False
        reference = self._reference_run(kind.steps, steps)
        if kind.is_before_start:
            kind.inject(self._network, host, choose)
        hosts = [*self._network.hosts.values()]
        run = ClientRun(hosts, *_JOB, *steps) if kind.from_client else HostRun(hosts, *_JOB, *steps)
        try:
            if kind.from_client:
                wait_until(
                    lambda: [process for process in process_titles(hosts[0]) if "serve" in process],
                    deadline_s=END_TIMEOUT_S,
                )
            if not kind.is_before_start:
                _wait_for_step(run, trial.step)
                kind.inject(self._network, host, choose)
            codes = run.exit_codes(2 * END_TIMEOUT_S)
            coordinator_run = run.run_on(0)
            trial.outcome = coordinator_run.outcome()
            if set(codes) != {0}:
                trial.wrong.append(
                    f"exit codes {codes}: {[run.output_of(at)[-600:] for at in range(len(run.commands))]}"
                )
            if problems := launching.read_problems(coordinator_run) or launching.read_problems(
                coordinator_run, "warning"
            ):
                trial.code, trial.message = problems[0].code, str(problems[0].headline())
            if launching.read_problems(coordinator_run):
                trial.wrong.append(f"told: {_summarize(problems)}")
            _check_steps(trial, coordinator_run, kind.steps)
            if (difference := weight_difference(coordinator_run, reference)) > _WEIGHT_TOLERANCE:
                trial.wrong.append(f"weights differ by {difference}")
        finally:
            run.end()

    def _reference_run(self, number: int, steps: tuple[str, ...]) -> RunDir:
        """What nobody disturbed, once."""
        if number not in self._reference_runs:
            folder = self._folder / f"whole-{number}"
            job = ["cpu:3" if word == "cpu:1" else word for word in _JOB]
            rankdeck("train", *job, *steps, "--runs", folder, exit_code=0)
            (self._reference_runs[number],) = list_folder(folder)
        return self._reference_runs[number]

    def _run_cancellation(self, trial: Trial, choose: random.Random, *, is_starting: bool) -> None:
        """At the desk, of a run of all hosts or of the first one alone: it is stopped."""
        hosts = [*self._network.hosts.values()]
        alone, trial.goes_on = trial.goes_on, False
        run = ClientRun(hosts[:1] if alone else hosts, *_LONG, alone=alone)
        try:
            if is_starting:
                time.sleep(choose.uniform(0.3, 8.0))
            else:
                _wait_for_step(run, trial.step)
            fault_s = time.monotonic()
            for _ in range(3):
                run.commands[0].send_signal(signal.SIGINT)
                time.sleep(choose.uniform(0.05, 0.4))
            trial.outcome = f"exit codes {run.exit_codes(END_TIMEOUT_S)}"
            # Before it has begun anything, nothing catches the third one.
            if run.commands[0].returncode not in (
                EXIT_INTERRUPTED,
                *([-signal.SIGINT] if is_starting else []),
            ):
                trial.wrong.append(trial.outcome)
            trial.message = run.output_of(0)[-300:]
            while any(map(process_titles, hosts)) and time.monotonic() < fault_s + scale_timeout(
                EXIT_TIMEOUT_S
            ):
                time.sleep(0.05)
            trial.gone_s = round(time.monotonic() - fault_s, 1)
            if not is_starting and run.run_on(0).outcome() != "stopped":
                trial.wrong.append(f"outcome {run.run_on(0).outcome()}: {run.output_of(0)[-600:]}")
        finally:
            run.end()

    def _run_refusal(self, trial: Trial, host: NetworkHost) -> None:
        """Nobody begins, whether it was asked for from the desk or by hand."""
        folder = self._folder / f"packages-{trial.seed}-{REFUSED.index(trial.kind)}"
        by_hand, trial.goes_on = not trial.goes_on, False
        trial.message, fragments = run_refused_job(
            trial.kind, self._network, host, folder, _LONG, by_hand=by_hand
        )
        trial.wrong += [
            f"{word!r} is not told: {trial.message[-500:]}" for word in fragments if word not in trial.message
        ]
        trial.wrong += [
            f"{word!r} is told" for word in ("firewall", "no connection") if word in trial.message
        ]


def _wait_for_step(run: HostRun, step: int) -> None:
    coordinator_run = run.run_on(0)
    wait_until(
        lambda: (read_run_state(coordinator_run).step or 0) >= step,
        deadline_s=END_TIMEOUT_S,
        what=f"step {step}",
    )


def _check_steps(trial: Trial, run: RunDir, steps: int) -> None:
    state = read_run_state(run)
    if state.step != steps:
        trial.wrong.append(f"{state.step} steps, and not {steps}")
    if state.counts.missing or state.counts.unreadable:
        trial.wrong.append(f"events: {state.counts}")
    if (apart_s := max(_step_end_spreads(run))) > _MAX_SPREAD_S:
        trial.wrong.append(f"one step ends {apart_s:.1f} s later on one host than on another")


def _step_end_spreads(run: RunDir) -> list[float]:
    """Of each step of an attempt, between the first rank's end of it and the last one's: they sum gradients
    together. A rank that ends a step which it ended before is in its next attempt."""
    ended: dict[tuple[int, int], list[float]] = {}
    last: Counter[int] = Counter()
    attempts: Counter[int] = Counter()
    for _, event in EventReader(run).read(1 << 30):
        if isinstance(event, events.Steps):
            attempts[event.rank] += event.first <= last[event.rank]
            last[event.rank] = event.first + len(event.ended) - 1
            for step, t in enumerate(event.ended, event.first):
                ended.setdefault((attempts[event.rank], step), []).append(t)
    return [max(times) - min(times) for times in ended.values()]


def _summarize(problems: list[Problem]) -> list[str]:
    return [f"{problem.code} of {problem.rank}: {problem.message[:300]}" for problem in problems]
