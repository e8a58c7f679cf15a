"""`rankdeck race`: train the same steps with every strategy that is predicted to fit, and compare the losses.

Ctrl-C (or SIGTERM) stops the running entry and keeps its measurements. A second signal stops the entry at
once, and after a third the command returns without waiting.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import msgspec
import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.home import expand_home
from rankdeck.base.names import validate_name
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, ConfigName, Detach, Overrides, check_output_file, load_config
from rankdeck.cli.wait import EXIT_INTERRUPTED, InterruptCounter, print_run_path, sigterm_as_interrupt
from rankdeck.run.bounds import RACE_STEPS
from rankdeck.run_dir import RaceDir, RunDir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankdeck.cli.race_display import RaceDisplay
    from rankdeck.config import RunConfig
    from rankdeck.launch.race import RaceRequest, RaceRunner
    from rankdeck.planner.candidates import Target
    from rankdeck.run.plan_lines import PlanLine
    from rankdeck.run.race import ExcludedStrategy, Race
    from rankdeck.run_dir import RaceDir


CONFIRM_ABOVE_S = 120.0
"""Expected duration above which a race that is started in a terminal asks for confirmation."""
MIN_STEPS, MAX_STEPS = 20, 1000
"""Limits of --steps; with fewer than 20 steps, the median step time is unreliable."""
_POLL_INTERVAL_S = 0.05


def race(
    config: ConfigName,
    steps: Annotated[
        int,
        typer.Option(min=MIN_STEPS, max=MAX_STEPS, help="Steps per strategy; the first five are not timed."),
    ] = RACE_STEPS,
    devices: Annotated[
        str | None, typer.Option(help="Devices: auto, cpu:4 (rehearsal), gpu:all, gpu:0,2 or gpu:GPU-<uuid>.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Strategies, separated by commas. Default: all that fit."),
    ] = None,
    overrides: Overrides = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for runs. Default: ./runs.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the configuration with the winning strategy (GPUs only)."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Start without asking, however long the race takes.")
    ] = False,
    detach: Detach = False,
    announced: Annotated[int | None, typer.Option(ANNOUNCE_OPTION, hidden=True)] = None,
    as_json: AsJson = False,
) -> int:
    """Train a few steps under every strategy that fits.

    Runs one strategy after another on the same devices from the same seed, measures time and memory, and
    compares losses. Exits with 0 if all strategies completed, and losses agree or differ for a known reason.
    """
    chosen = load_config(config, devices=devices, overrides=overrides or ())
    if detach:
        return start_detached_race(as_json=as_json)
    request, num_devices = _plan_race(chosen, only, steps, runs, save, quiet=as_json)
    if not yes and not _confirm_race(request):
        raise typer.Abort
    from rankdeck.cli.race_display import make_race_display
    from rankdeck.launch.race import RaceRunner, check_num_devices

    check_num_devices(request, num_devices)
    with RaceRunner(request) as racing:
        if announced is not None:
            detach_to_log(racing.folder, announced)
        display = make_race_display(racing.race, quiet=as_json)
        _run_entries(racing, display)
    _print_result(racing.folder, racing.race, as_json=as_json, are_entries_shown=True)
    if save is not None:
        save_winner(racing.race, chosen, save)
    return EXIT_INTERRUPTED if racing.is_stopped else racing.race.exit_code


def _plan_race(
    config: RunConfig, only: str | None, steps: int, runs: Path | None, save: Path | None, *, quiet: bool
) -> tuple[RaceRequest, int]:
    """Plan the race; return its request and the number of devices.

    Raises:
        ConfigError: no strategy fits, the runs folder is not writable, hosts.use is set, or --save is used in
            a rehearsal.
    """
    from rankdeck import run_dir
    from rankdeck.cli.plan import predict_lines
    from rankdeck.cli.plan_target import resolve_target
    from rankdeck.launch.race import RaceRequest
    from rankdeck.planner.candidates import candidates_for

    if config.hosts.use:
        raise ConfigError(
            plural_phrase(
                tr_noop("The key hosts.use lists a host, but a race runs only on this machine."),
                tr_noop("The key hosts.use lists {n} hosts, but a race runs only on this machine."),
                len(config.hosts.use),
            ),
            code="hosts",
            path="hosts.use",
            advice=phrase("Leave hosts.use out, or train each strategy in a separate run."),
        )
    folder = run_dir.runs_folder(runs)
    # Check folder, name and output file before the planning, which takes seconds.
    run_dir.check_can_hold_runs(folder)
    validate_name(config.name)
    target = resolve_target(config, None, None)
    if save is not None:
        check_output_file(expand_home(save))
    if save is not None and not target.like_cuda:
        raise ConfigError(
            phrase("The option --save needs GPUs: speed on virtual devices does not predict speed on GPUs."),
            code="rehearsal",
            path="devices.use",
            advice=phrase("Leave --save out, or race on GPUs: --devices gpu:all."),
        )
    order = [row.label for row in candidates_for(config, only, target.num_devices)]
    if not order:
        raise ConfigError(
            phrase("Rankdeck has no suitable options for {only} on {name}.", only=only, name=target.name),
            code="nothing-to-race",
            advice=phrase("Set options in the configuration's strategy table, or race on more devices."),
        )
    if not quiet:
        console.err().print(f"planning which strategies fit on {target.name}", style="dim")
    predicted_lines = sorted(
        predict_lines(config, only, target, advice=False),
        # A single device comes first: its losses are the reference of all others.
        key=lambda line: (line.strategy != "single", order.index(line.label)),
    )
    lines, left_out = split_by_verdict(predicted_lines, is_explicit=only is not None)
    if not lines:
        raise nothing_fits_error(left_out, target)
    command_line = ["rankdeck", *sys.argv[1:]]
    return RaceRequest(config, lines, left_out, steps, folder, command_line), target.num_devices


def split_by_verdict(
    lines: Sequence[PlanLine], *, is_explicit: bool
) -> tuple[list[PlanLine], list[ExcludedStrategy]]:
    """Return (lines of the strategies to race, excluded strategies).

    If `is_explicit` (the user named the strategies), those whose memory cannot be predicted are raced too.
    """
    from rankdeck.run.plan_lines import CANNOT, FITS, TIGHT
    from rankdeck.run.race import ExcludedStrategy

    def races(line: PlanLine) -> bool:
        is_unknown = line.verdict == CANNOT and line.refusal is None
        return line.verdict in (FITS, TIGHT) or (is_explicit and is_unknown)

    left_out = [
        ExcludedStrategy(label=line.label, verdict=line.verdict, reason=line.reason, phrases=line.phrases)
        for line in lines
        if not races(line)
    ]
    return [line for line in lines if races(line)], left_out


def nothing_fits_error(left_out: Sequence[ExcludedStrategy], target: Target) -> ConfigError:
    labels: dict[str, list[str]] = {}
    for excluded in left_out:
        labels.setdefault(excluded.reason or excluded.verdict, []).append(excluded.label)
    texts = [f"{', '.join(named)}: {reason}" for reason, named in labels.items()]
    reasons = next(iter(labels)) if len(labels) == 1 else " ".join(texts[:3])
    return ConfigError(
        phrase(
            "No strategy is predicted to fit on {devices}. {reasons}", devices=target.name, reasons=reasons
        ),
        code="nothing-fits",
        advice=phrase(
            "To see what to change, use: rankdeck plan. A strategy named with --only is tried "
            "even if its memory cannot be predicted."
        ),
    )


def _confirm_race(request: RaceRequest) -> bool:
    """Return whether to start the race; on a terminal, ask the user before starting a long race."""
    from rankdeck.run.race import duration_text, estimate_duration_s

    is_asked = sys.stdin.isatty() and sys.stderr.isatty()
    if estimate_duration_s(request.lines, request.steps)[0] <= CONFIRM_ABOVE_S or not is_asked:
        return True
    duration = duration_text(request.lines, request.steps)
    count = len(request.lines)
    strategies = f"{count} strategies take" if count > 1 else "1 strategy takes"
    return typer.confirm(f"{strategies} {duration}. Start the race?", default=True, err=True)


def _run_entries(racing: RaceRunner, display: RaceDisplay) -> None:
    """Run the entries one after another until all are done or the race is stopped."""
    from rankdeck.cli.follow import follow

    interrupts = InterruptCounter(racing.stop, display.show_message)

    def goes_on() -> bool:
        if racing.is_stop_requested and not racing.is_stopped:
            racing.stop()
        return interrupts.handle_pending()

    with interrupts.count_signals():
        for entry in racing.entries():
            display.start_entry(entry)
            run = racing.start(entry)
            if run is not None:
                racing.finish(entry, follow(run, display, goes_on))
            display.finish_entry(entry)
            if not goes_on():
                break


def _print_result(folder: RaceDir, race: Race, *, as_json: bool, are_entries_shown: bool = False) -> None:
    """Print the race's result.

    If `are_entries_shown` is True, failures are left out: each was printed when its entry ended.
    """
    from rankdeck.cli.race_tables import print_race

    if as_json:
        console.print_json(race_facts(folder, race))
    else:
        print_race(folder, race, with_failures=not are_entries_shown)


def race_facts(folder: RaceDir, race: Race) -> dict[str, object]:
    """Return the `--json` output: the race's name and path, and the content of race.json."""
    return {"race": folder.name, "path": str(folder.path), **msgspec.to_builtins(race)}


def load_race(folder: RaceDir) -> Race:
    """Read a race.

    Raises:
        ConfigError: the race's file cannot be read.
    """
    from rankdeck.run.race import read_race

    race = read_race(folder)
    if race is None:
        raise ConfigError(
            phrase("{file} cannot be read, or was written by a newer version of Rankdeck.", file=folder.file),
            code="unreadable",
            path=str(folder.file),
        )
    return race


def show_race(folder: RaceDir, *, as_json: bool) -> int:
    """Print a race for `rankdeck show`.

    Raises:
        ConfigError: the race's file cannot be read.
    """
    race = load_race(folder)
    if not as_json:
        console.out().print(race.title, style="bold")
    _print_result(folder, race, as_json=as_json)
    return 0


def stop_race(folder: RaceDir, *, timeout_s: float) -> bool:
    """Ask the race to stop; return whether it ended within `timeout_s`.

    Raises:
        ConfigError: the race directory cannot be written, or is a link to another location.
    """
    from rankdeck.run_dir import write_request

    write_request(folder.path, folder.stop_request.name)
    until_s = time.monotonic() + timeout_s
    while folder.is_alive():
        if time.monotonic() > until_s:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def save_winner(race: Race, config: RunConfig, file: Path) -> None:
    """Write the requested configuration with the winner's strategy; if there is no winner, print the reason.

    Raises:
        ConfigError: the file cannot be written.
    """
    from rankdeck.base.files import write_atomic
    from rankdeck.launch.race import entry_config

    winner = race.entry(race.verdicts.winner)
    if winner is None:
        why = "no strategy is clearly the fastest"
        if race.is_rehearsal:
            why = "the times of a rehearsal do not predict GPU times"
        elif race.verdicts.inconclusive:
            why = f"the race is {race.verdicts.inconclusive[:1].lower()}{race.verdicts.inconclusive[1:-1]}"
        console.err().print(f"{file} was not written: {why}.", style="yellow", soft_wrap=True)
        return
    try:
        write_atomic(expand_home(file), entry_config(config, winner.predicted).to_toml())
    except OSError as error:
        raise ConfigError(
            phrase("{file} cannot be written: {why}.", file=file, why=error.strerror),
            code="unwritable",
            path=str(file),
        ) from None
    command = f"rankdeck train {shlex.quote(str(file))}"
    console.err().print(
        f"Saved the configuration with {winner.label} to {file}. Train it with: {command}", soft_wrap=True
    )


# `rankdeck race --detach`: run the race in a process and session of its own. The calling command waits until
# the race has planned and reserved its devices, then prints the race's path and exits. Later output goes to
# race.log in the race directory; an error before that is printed here.

ANNOUNCE_OPTION = "--announce"
LOG_NAME = "race.log"


def start_detached_race(*, as_json: bool) -> int:
    """Start the requested race in another process, and return this command's exit code."""
    reading, writing = os.pipe()
    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    command = [sys.executable, "-P", "-m", "rankdeck", *arguments, "--yes", ANNOUNCE_OPTION, str(writing)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, sigterm_as_interrupt():
        racer = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=[writing],
            # A session of its own: neither Ctrl-C nor a closed terminal reaches the race.
            start_new_session=True,
        )
        # Close this copy, or the read below would not end when the race process ends.
        os.close(writing)
        try:
            with open(reading, encoding="utf-8") as announced:
                path = announced.read()
            # Nothing to read means that the race ended before it announced its path.
            code = 0 if path else racer.wait()
        # Ctrl-C before the announcement: the race must not continue unnoticed.
        except BaseException:
            racer.terminate()
            racer.wait()
            raise
        if not path:
            _copy_output(out, sys.stdout.fileno())
            _copy_output(err, sys.stderr.fileno())
            return code
    return print_run_path(RunDir(Path(path)), as_json=as_json)


def _copy_output(output: IO[bytes], handle: int) -> None:
    output.seek(0)
    with os.fdopen(os.dup(handle), "wb") as stream:
        shutil.copyfileobj(output, stream)


def detach_to_log(race: RaceDir, handle: int) -> None:
    """Write the race's path to the pipe `handle`, and redirect further output to the race's log.

    Raises:
        BrokenPipeError: the command that started the race has exited.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    log = os.open(race.path / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    with open(handle, "w", encoding="utf-8") as pipe:
        pipe.write(str(race.path))
