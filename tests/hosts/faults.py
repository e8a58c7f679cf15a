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
from rankdeck.checkpoint_files import newest_whole
from rankdeck.cli.until_end import INTERRUPTED
from rankdeck.run.fold import read_fold
from rankdeck.rundir import EventReader, RunDir, list_folder
from tests.helpers import launching
from tests.helpers.cli import rankdeck
from tests.helpers.host_network import Host, HostNetwork
from tests.helpers.host_runs import DeskRun, HostRun, apart, kill, processes
from tests.helpers.waiting import wait_until, with_load
from tests.hosts.refused import REFUSED, refused

NAMES = ("box1", "box2", "box3")
GONE_S = 15.0
END_S = 60.0
_JOB = ("digits-mlp", "--strategy", "ddp", "--devices", "cpu:1")
_JOB = (*_JOB, "--set", "train.evaluate_every=0", "--set", "train.global_batch=48")
_LONG = (*_JOB, "--set", "train.steps=1000000", "--set", "train.checkpoint_every=0")
_LONG = (*_LONG, "--set", "launch.timeout_s=12")
_WHOLE_STEPS = 300
_AGAIN = (*_JOB, "--set", f"train.steps={_WHOLE_STEPS}", "--set", "train.checkpoint_every=25")
_AGAIN = (*_AGAIN, "--set", "launch.max_restarts=1", "--set", "hosts.min=2")
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
_PARITY, _APART_S = 2e-6, 5.0


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
class Kind:
    """`act` makes it on a host. `words` are in what is told of it, on the head, or on the others where it was
    the head's. A run may get over each with a restart, without the host where that is gone as a whole, but
    not over what `is_final`.
    """

    act: Callable[[HostNetwork, Host], None]
    code: str
    words: tuple[str, ...]
    is_whole_host: bool = False
    undo: Callable[[HostNetwork, Host], None] = lambda network, host: None
    is_final: bool = False
    gone_s: float = GONE_S


@dataclass(frozen=True)
class Survived:
    """What changes nothing but what is seen. `before`: it is there from the beginning on; `from_desk`: the
    run was begun from there."""

    act: Callable[[HostNetwork, Host, random.Random], None]
    before: bool = False
    from_desk: bool = False
    steps: int = _WHOLE_STEPS
    undo: Callable[[HostNetwork, Host], None] = lambda network, host: None


def _everything(signal: str) -> Callable[[HostNetwork, Host], None]:
    """To all that runs on a host but its sshd."""
    return lambda network, host: _on(host, "sh", "-c", f"kill -{signal} -1; true")


def _on(host: Host, *command: str) -> None:
    host.execute(*command)


def _kill(title: str) -> Callable[[HostNetwork, Host], None]:
    return lambda network, host: kill(title)(host)


def _remove_part(network: HostNetwork, host: Host) -> None:
    newest = max(list_folder(host.runs), key=lambda run: run.path.stat().st_mtime)
    shutil.rmtree(newest.path, ignore_errors=True)


def _cut_desk(network: HostNetwork, host: Host, choose: random.Random) -> None:
    network.at_switch("ip", "link", "set", "desk", "down")
    time.sleep(choose.uniform(0.5, 8.0))
    network.at_switch("ip", "link", "set", "desk", "up")


def _shift_clock(network: HostNetwork, host: Host, choose: random.Random) -> None:
    shift = choose.choice((-300, -60, 60, 3600))
    host.give(LD_PRELOAD=str(FAKETIME), FAKETIME=f"{shift:+d}")


ENDS = {
    "a rank is killed": Kind(_kill("rankdeck rank"), "rank-killed", ("SIGKILL", "{host}")),
    "a supervisor is killed": Kind(_kill("launch.supervisor"), "supervisor-lost", ("SIGKILL", "{host}")),
    "a guard is killed": Kind(
        _kill("rankdeck guard"),
        "host-lost",
        ("{called}", "closed its connection"),
        is_whole_host=True,
    ),
    "a host has no power": Kind(
        lambda network, host: host.kill(),
        "host-lost",
        ("{called}", "closed its connection"),
        is_whole_host=True,
        undo=lambda network, host: host.boot(),
    ),
    "a host's cable is pulled": Kind(
        lambda network, host: host.cut_off(),
        "host-lost",
        ("{called}", "silent for 5 s"),
        is_whole_host=True,
        undo=lambda network, host: host.plug_back(),
    ),
    "everything on a host is stopped": Kind(
        _everything("STOP"),
        "host-lost",
        ("{called}", "silent for 5 s"),
        is_whole_host=True,
        undo=_everything("CONT"),
    ),
    "a part's folder is removed": Kind(
        _remove_part, "run-folder", ("{host}", "folder was removed"), is_final=True
    ),
    "a network loses large packets": Kind(
        lambda network, host: host.lose_large(),
        "hang",
        ("the network between", "{host}"),
        undo=lambda network, host: host.carry_large(),
        is_final=True,
        gone_s=45.0,
    ),
}
SURVIVED = {
    "a sampler is killed": Survived(lambda network, host, choose: kill("telemetry.sampler")(host)),
    "a pipe's far end is killed": Survived(
        lambda network, host, choose: _on(network.hosts[NAMES[0]], "pkill", "-9", "-f", "serve --stdio"),
        from_desk=True,
        steps=500,
    ),
    "the desk is cut off": Survived(_cut_desk, from_desk=True, steps=500),
    "a network of 200 ms that loses 5 %": Survived(
        lambda network, host, choose: network.slow_down(100, 5.0),
        before=True,
        steps=4,
        undo=lambda network, host: network.speed_up(),
    ),
    "a clock is off": Survived(_shift_clock, before=True, undo=lambda network, host: host.give()),
}
LEFT = {"Ctrl-C thrice while it trains": False, "Ctrl-C thrice while it begins": True}
KINDS = (*ENDS, *SURVIVED, *LEFT, *REFUSED)


class Trials:
    """On one network, one after another."""

    def __init__(self, network: HostNetwork, folder: Path) -> None:
        self._network, self._folder = network, folder
        self._wholes: dict[int, RunDir] = {}

    def try_out(self, seed: int, name: str) -> Trial:
        choose, began_s = random.Random(f"{seed} {name}"), time.monotonic()
        drawn = choose.choice(NAMES), choose.randrange(5, 60), choose.random() < 1 / 3
        trial = Trial(seed, name, *drawn)
        host = self._network.hosts[trial.host]
        kind = ENDS.get(name) or SURVIVED.get(name)
        try:
            if isinstance(kind, Kind):
                self._ended(trial, kind, host)
            elif kind is not None:
                self._survived(trial, kind, host, choose)
            elif name in LEFT:
                self._left(trial, choose, begins=LEFT[name])
            else:
                self._refused(trial, host)
        except Exception as error:
            trial.wrong.append(f"{type(error).__name__}: {str(error)[:1000]}")
        finally:
            if kind is not None:
                kind.undo(self._network, host)
        self._leave_nothing(trial)
        trial.took_s = round(time.monotonic() - began_s, 1)
        return trial

    def _leave_nothing(self, trial: Trial) -> None:
        """Whatever still lives had `GONE_S` since the fault, or since its host is back."""
        for host in self._network.hosts.values():
            try:
                wait_until(lambda host=host: not processes(host), deadline_s=GONE_S)
            except AssertionError:
                trial.wrong.append(f"left on {host.name}: {processes(host)}")
                _on(host, "pkill", "-9", "-f", "rankdeck")

    def _ended(self, trial: Trial, kind: Kind, host: Host) -> None:
        is_head = host.name == NAMES[0]
        trial.goes_on = trial.goes_on and not (is_head and kind.is_whole_host) and not kind.is_final
        run = HostRun([*self._network.hosts.values()], *(_AGAIN if trial.goes_on else _LONG))
        try:
            if trial.goes_on:
                saved = run.part(0).checkpoints_folder
                wait_until(lambda: newest_whole(saved)[0], deadline_s=END_S, what="a checkpoint")
            _await_step(run, trial.step)
            fault_s = time.monotonic()
            kind.act(self._network, host)
            # Of a head that is gone the others tell.
            is_gone = kind.is_whole_host or kind.code == "run-folder"
            telling = run.part(int(is_head and is_gone))
            wait_until(lambda: telling.end() is not None, deadline_s=END_S, what="the end")
            if not trial.goes_on:
                self._await_others(trial, kind, host, fault_s)
            trial.outcome = telling.outcome()
            self._judge(trial, kind, host, telling)
        except AssertionError:
            trial.wrong += [f"{one.name} said: {run.said(at)[-600:]}" for at, one in enumerate(run.hosts)]
            raise
        finally:
            run.end()

    def _await_others(self, trial: Trial, kind: Kind, host: Host, fault_s: float) -> None:
        hosts = [one for one in self._network.hosts.values() if one is not host or not kind.is_whole_host]
        limit_s = with_load(kind.gone_s)
        while any(map(processes, hosts)) and time.monotonic() < fault_s + limit_s + 1:
            time.sleep(0.05)
        trial.gone_s = round(time.monotonic() - fault_s, 1)
        if trial.gone_s > limit_s:
            trial.wrong.append(f"gone after {trial.gone_s} s")

    def _judge(self, trial: Trial, kind: Kind, host: Host, telling: RunDir) -> None:
        errors = [one for one in read_fold(telling).problems if one.severity == "error"]
        expected = "completed" if trial.goes_on else "failed"
        if trial.outcome != expected:
            trial.wrong.append(f"outcome {trial.outcome}, and not {expected}")
        warnings = [one for one in launching.problems(telling, "warning") if one.code == "restarted"]
        told = warnings if trial.goes_on else errors
        if kind.code == "run-folder" and host.name == NAMES[0]:  # whose folder had the problem
            end = telling.end()
            trial.message = str(end.reason if end is not None else "")
            self._judge_words(trial, kind, host)
            return
        if len(told) != 1 or (trial.goes_on and errors):
            trial.wrong.append(f"told: {_brief([*errors, *warnings])}")
        if not told:
            return
        trial.code, trial.message = told[0].code, str(told[0].headline())
        if told[0].code != ("restarted" if trial.goes_on else kind.code):
            trial.wrong.append(f"code {told[0].code}")
        self._judge_words(trial, kind, host)
        if trial.goes_on:
            _check_steps(trial, telling, _WHOLE_STEPS)
        elif kind.code == "rank-killed" and told[0].host != host.name:
            trial.wrong.append(f"rank {told[0].rank} on {told[0].host} is told")

    def _judge_words(self, trial: Trial, kind: Kind, host: Host) -> None:
        called = f"the head ({host.address})" if host.name == NAMES[0] else f"{host.name} ({host.address})"
        for word in kind.words:
            if (word := word.format(host=host.name, called=called)) not in trial.message:
                trial.wrong.append(f"{word!r} is not told: {trial.message[:300]}")

    def _survived(self, trial: Trial, kind: Survived, host: Host, choose: random.Random) -> None:
        steps = ("--set", f"train.steps={kind.steps}", "--set", "train.checkpoint_every=0")
        trial.goes_on = False
        whole = self._whole(kind.steps, steps)
        if kind.before:
            kind.act(self._network, host, choose)
        hosts = [*self._network.hosts.values()]
        run = DeskRun(hosts, *_JOB, *steps) if kind.from_desk else HostRun(hosts, *_JOB, *steps)
        try:
            if kind.from_desk:
                wait_until(lambda: [one for one in processes(hosts[0]) if "serve" in one], deadline_s=END_S)
            if not kind.before:
                _await_step(run, trial.step)
                kind.act(self._network, host, choose)
            codes = run.codes(2 * END_S)
            head = run.part(0)
            trial.outcome = head.outcome()
            if set(codes) != {0}:
                trial.wrong.append(
                    f"exit codes {codes}: {[run.said(at)[-600:] for at in range(len(run.commands))]}"
                )
            if told := launching.problems(head) or launching.problems(head, "warning"):
                trial.code, trial.message = told[0].code, str(told[0].headline())
            if launching.problems(head):
                trial.wrong.append(f"told: {_brief(told)}")
            _check_steps(trial, head, kind.steps)
            if (difference := apart(head, whole)) > _PARITY:
                trial.wrong.append(f"weights differ by {difference}")
        finally:
            run.end()

    def _whole(self, number: int, steps: tuple[str, ...]) -> RunDir:
        """What nobody disturbed, once."""
        if number not in self._wholes:
            folder = self._folder / f"whole-{number}"
            job = ["cpu:3" if word == "cpu:1" else word for word in _JOB]
            rankdeck("train", *job, *steps, "--runs", folder, code=0)
            (self._wholes[number],) = list_folder(folder)
        return self._wholes[number]

    def _left(self, trial: Trial, choose: random.Random, *, begins: bool) -> None:
        """At the desk, of a run of all hosts or of the first one alone: it is stopped."""
        hosts = [*self._network.hosts.values()]
        alone, trial.goes_on = trial.goes_on, False
        run = DeskRun(hosts[:1] if alone else hosts, *_LONG, alone=alone)
        try:
            if begins:
                time.sleep(choose.uniform(0.3, 8.0))
            else:
                _await_step(run, trial.step)
            fault_s = time.monotonic()
            for _ in range(3):
                run.commands[0].send_signal(signal.SIGINT)
                time.sleep(choose.uniform(0.05, 0.4))
            trial.outcome = f"exit codes {run.codes(END_S)}"
            # Before it has begun anything, nothing catches the third one.
            if run.commands[0].returncode not in (INTERRUPTED, *([-signal.SIGINT] if begins else [])):
                trial.wrong.append(trial.outcome)
            trial.message = run.said(0)[-300:]
            while any(map(processes, hosts)) and time.monotonic() < fault_s + with_load(GONE_S):
                time.sleep(0.05)
            trial.gone_s = round(time.monotonic() - fault_s, 1)
            if not begins and run.part(0).outcome() != "stopped":
                trial.wrong.append(f"outcome {run.part(0).outcome()}: {run.said(0)[-600:]}")
        finally:
            run.end()

    def _refused(self, trial: Trial, host: Host) -> None:
        """Nobody begins, whether it was asked for from the desk or by hand."""
        folder = self._folder / f"packages-{trial.seed}-{REFUSED.index(trial.kind)}"
        by_hand, trial.goes_on = not trial.goes_on, False
        trial.message, words = refused(trial.kind, self._network, host, folder, _LONG, by_hand=by_hand)
        trial.wrong += [
            f"{word!r} is not told: {trial.message[-500:]}" for word in words if word not in trial.message
        ]
        trial.wrong += [
            f"{word!r} is told" for word in ("firewall", "no connection") if word in trial.message
        ]


def _await_step(run: HostRun, step: int) -> None:
    head = run.part(0)
    wait_until(lambda: (read_fold(head).step or 0) >= step, deadline_s=END_S, what=f"step {step}")


def _check_steps(trial: Trial, run: RunDir, steps: int) -> None:
    fold = read_fold(run)
    if fold.step != steps:
        trial.wrong.append(f"{fold.step} steps, and not {steps}")
    if fold.counts.missing or fold.counts.unreadable:
        trial.wrong.append(f"events: {fold.counts}")
    if (apart_s := max(_times_apart(run))) > _APART_S:
        trial.wrong.append(f"one step ends {apart_s:.1f} s later on one host than on another")


def _times_apart(run: RunDir) -> list[float]:
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


def _brief(problems: list[Problem]) -> list[str]:
    return [f"{one.code} of {one.rank}: {one.message[:300]}" for one in problems]
