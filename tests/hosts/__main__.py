"""Faults of runs over three hosts: python -m tests.hosts [--each N] [--seed S] [--cache FOLDER] [--page FILE]

As root, with what tests/helpers/host_network.py needs, and libfaketime. It goes on where it was cut off.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from tests.faults.record import Recorded
from tests.helpers.checkout import PRODUCT
from tests.helpers.host_network import HostNetwork, ssh_unavailable_reason, unavailable_reason
from tests.hosts.faults import EXIT_TIMEOUT_S, FAKETIME, KINDS, NAMES, Trial, TrialRunner

SEED, TRIALS_PER_KIND = 20_261_127, 20
_HEAD = """\
# What breaks of a run over several hosts, and what is told of it

`make host-faults` makes every kind of fault below for real in runs over three hosts: on one machine each has
a network, a name, processes, a home and an sshd of its own, joined by a switch. The host, the step and, where
that is possible, whether the run may go on (`launch.max_restarts`, `hosts.min`) are drawn from a seed. A
trial is right when

- of what ends a run one cause was told, which names the host (and the rank, where one was killed), by the
  head, or by the others where it was the head that went;
- no process of the run was left on any host that still was one {gone:.0f} s after the fault; on one that was
  cut off, without power or stopped, {gone:.0f} s after it was back;
- where the run may go on, it went on to its last step by itself, and said why;
- what only slows or hides a run (a sampler or a pipe that dies, a desk that is cut off, a slow network, a
  clock that is off) changed nothing: no error was told, and the weights are those of one host within 2e-6;
- nothing began where a host has another torch or none, lacks a package, or is called as the first one;
- what was left with three Ctrl-C, while it trained or before, was stopped on all hosts;
- every event of the run can be read at the head, and none is missing.

This page is written by it.
"""


def format_page(trials: Sequence[Trial], seed: int) -> str:
    right, took_s = sum(not one.wrong for one in trials), sum(one.took_s for one in trials)
    lines = [
        _HEAD.format(gone=EXIT_TIMEOUT_S),
        f"{datetime.date.today().isoformat()}, seed {seed}: {len(trials)} trials, {right} right, "
        f"{took_s / 60:.0f} minutes.",
        "",
        "| fault | trials | right | went on | told as | gone after, at most |",
        "|---|---:|---:|---:|---|---:|",
    ]
    for kind in KINDS:
        tried = [one for one in trials if one.kind == kind]
        if not tried:
            continue
        told = Counter(one.code for one in tried if one.code and not one.goes_on)
        codes = ", ".join(f"`{code}`" for code, _ in told.most_common(2)) or "nothing"
        gone = [one.gone_s for one in tried if one.gone_s is not None]
        most = f"{max(gone):.1f} s" if gone else ""
        ok, on = sum(not one.wrong for one in tried), sum(one.goes_on for one in tried)
        lines.append(f"| {kind} | {len(tried)} | {ok} | {on or ''} | {codes} | {most} |")
    if wrong := [one for one in trials if one.wrong]:
        lines += ["", "## What was wrong", ""]
        lines += [f"- {one.kind}, {one.host}, seed {one.seed}: {one.wrong[0][:300]}" for one in wrong]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts")
    parser.add_argument("--each", type=int, default=TRIALS_PER_KIND, help="trials of every kind")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="kinds whose names hold this")
    parser.add_argument("--cache", type=Path, default=Path(".make/host-faults"), help="what is done so far")
    parser.add_argument("--again", action="store_true", help="try again what was wrong")
    parser.add_argument("--page", type=Path, help="where the page is written")
    asked = parser.parse_args()
    if (
        reason := unavailable_reason()
        or ssh_unavailable_reason()
        or ("" if FAKETIME else "libfaketime is missing")
    ):
        print(f"There can be no hosts here: {reason}.", file=sys.stderr)
        return 3
    done = Recorded(asked.cache / f"trials.{asked.seed}.jsonl", Trial, lambda one: f"{one.kind} {one.seed}")
    if asked.again:
        done.keep(done.right)
    # A shell's background job ignores SIGINT, and so would the commands that are left here with Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Nothing of the person's own, and a short path for sockets.
    with tempfile.TemporaryDirectory(prefix="rd-") as place:
        os.environ.update(PYTHONPATH=PRODUCT, HOME=place, RANKDECK_HOME=place, XDG_RUNTIME_DIR=place)
        network = HostNetwork(Path(place, "network"), NAMES)
        try:
            network.up()
            os.environ.update(network.environment)
            trials = TrialRunner(network, Path(place, "here"))
            for seed in range(asked.seed, asked.seed + asked.each):
                for kind in KINDS:
                    if asked.only in kind and f"{kind} {seed}" not in done:
                        one = trials.run_trial(seed, kind)
                        done.add(one)
                        _print_trial(one)
        finally:
            network.down()
    text = format_page([*done], asked.seed)
    if asked.page is not None:
        asked.page.write_text(text, encoding="utf-8")
    print(text)
    return int(any(one.wrong for one in done))


def _print_trial(one: Trial) -> None:
    where = f"{one.host}, step {one.step}{', goes on' if one.goes_on else ''}"
    print(f"{'wrong' if one.wrong else 'right'}  {one.kind} ({where}): {one.took_s} s", flush=True)
    for what in one.wrong:
        print(f"       {what[:1000]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
