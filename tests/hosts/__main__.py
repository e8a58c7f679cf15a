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
# What happens when something breaks on one of several hosts?

`make host-faults` injects every kind of fault below into real runs over three hosts. The hosts are on one
machine, joined by a switch. Each has its own network, name, processes, home and sshd. A seed chooses the
host, the step and, where possible, whether the run may continue (`launch.max_restarts`, `hosts.min`). A trial
passes if

- a run that ends reports one cause, which names the host (and the rank, if one was killed). The coordinator
  reports it, or the other hosts if the coordinator was lost;
- no process of the run is left on any running host {gone:.0f} s after the fault. For a host that was cut off,
  powered off or stopped, this time starts when it is back;
- a run that may continue does so up to its last step, without help, and reports the reason;
- a fault that only slows or hides a run changes nothing. Examples are a dead sampler or pipe, a disconnected
  client, a slow network or a wrong clock. The run reports no error, and its weights equal those of one host
  within 2e-6;
- no run starts if a host has another torch or none, lacks a package, or has the first host's name;
- Ctrl-C three times, during training or before, stops the run on all hosts;
- every event of the run can be read at the coordinator, and none is missing.

This command generates this page.
"""


def format_page(trials: Sequence[Trial], seed: int) -> str:
    right, took_s = sum(not trial.wrong for trial in trials), sum(trial.took_s for trial in trials)
    lines = [
        _HEAD.format(gone=EXIT_TIMEOUT_S),
        f"{datetime.date.today().isoformat()}, seed {seed}: {len(trials)} trials, {right} passed, "
        f"{took_s / 60:.0f} minutes.",
        "",
        "| fault | trials | passed | continued | reported as | processes gone after (max) |",
        "|---|---:|---:|---:|---|---:|",
    ]
    for kind in KINDS:
        tried = [trial for trial in trials if trial.kind == kind]
        if not tried:
            continue
        code_counts = Counter(trial.code for trial in tried if trial.code and not trial.goes_on)
        codes = ", ".join(f"`{code}`" for code, _ in code_counts.most_common(2)) or "nothing"
        exit_times_s = [trial.gone_s for trial in tried if trial.gone_s is not None]
        slowest = f"{max(exit_times_s):.1f} s" if exit_times_s else ""
        ok, on = sum(not trial.wrong for trial in tried), sum(trial.goes_on for trial in tried)
        lines.append(f"| {kind} | {len(tried)} | {ok} | {on or ''} | {codes} | {slowest} |")
    if wrong := [trial for trial in trials if trial.wrong]:
        lines += ["", "## Failed", ""]
        lines += [
            f"- {trial.kind}, {trial.host}, seed {trial.seed}: {trial.wrong[0][:300]}" for trial in wrong
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts")
    parser.add_argument("--each", type=int, default=TRIALS_PER_KIND, help="trials of every kind")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="kinds whose names hold this")
    parser.add_argument("--cache", type=Path, default=Path(".make/host-faults"), help="what is done so far")
    parser.add_argument("--again", action="store_true", help="try again what was wrong")
    parser.add_argument("--page", type=Path, help="where the page is written")
    options = parser.parse_args()
    if (
        reason := unavailable_reason()
        or ssh_unavailable_reason()
        or ("" if FAKETIME else "libfaketime is missing")
    ):
        print(f"There can be no hosts here: {reason}.", file=sys.stderr)
        return 3
    done = Recorded(
        options.cache / f"trials.{options.seed}.jsonl", Trial, lambda trial: f"{trial.kind} {trial.seed}"
    )
    if options.again:
        done.retain(done.right)
    # A shell's background job ignores SIGINT, and so would the commands that are left here with Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Nothing of the person's own, and a short path for sockets.
    with tempfile.TemporaryDirectory(prefix="rd-") as folder:
        os.environ.update(PYTHONPATH=PRODUCT, HOME=folder, RANKDECK_HOME=folder, XDG_RUNTIME_DIR=folder)
        network = HostNetwork(Path(folder, "network"), NAMES)
        try:
            network.up()
            os.environ.update(network.environment)
            trials = TrialRunner(network, Path(folder, "here"))
            for seed in range(options.seed, options.seed + options.each):
                for kind in KINDS:
                    if options.only in kind and f"{kind} {seed}" not in done:
                        trial = trials.run_trial(seed, kind)
                        done.add(trial)
                        _print_trial(trial)
        finally:
            network.down()
    text = format_page([*done], options.seed)
    if options.page is not None:
        options.page.write_text(text, encoding="utf-8")
    print(text)
    return int(any(trial.wrong for trial in done))


def _print_trial(trial: Trial) -> None:
    where = f"{trial.host}, step {trial.step}{', goes on' if trial.goes_on else ''}"
    print(f"{'wrong' if trial.wrong else 'right'}  {trial.kind} ({where}): {trial.took_s} s", flush=True)
    for what in trial.wrong:
        print(f"       {what[:1000]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
