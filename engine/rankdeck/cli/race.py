"""`rankdeck race`: every strategy that is predicted to fit trains the same steps; the losses are compared.

Ctrl-C (or SIGTERM) ends the entry that runs and keeps what was measured; the second one does so now; the
third leaves.
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
"""A race that is expected to take longer is asked about first, in a terminal."""
MIN_STEPS, MAX_STEPS = 20, 1000
"""Below 20 a median says little."""
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
        bool, typer.Option("--yes", "-y", help="Start without asking, however long it takes.")
    ] = False,
    detach: Detach = False,
    announced: Annotated[int | None, typer.Option(ANNOUNCE_OPTION, hidden=True)] = None,
    as_json: AsJson = False,
) -> int:
    """Train a few steps under every strategy that fits.

    Runs one strategy after another on the same devices from the same seed, measures time and memory, and
    compares the losses. Exits with 0 if all strategies completed and agree, or differ for a known reason.
    """
    chosen = load_config(config, devices=devices, overrides=overrides or ())
    if detach:
        return start_detached_race(as_json=as_json)
    asked, num_devices = _plan_race(chosen, only, steps, runs, save, quiet=as_json)
    if not yes and not _confirm_race(asked):
        raise typer.Abort
    from rankdeck.cli.race_display import make_race_display
    from rankdeck.launch.race import RaceRunner, check_num_devices

    check_num_devices(asked, num_devices)
    with RaceRunner(asked) as racing:
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
    """What fits, planned now, and on how many devices.

    Raises: ConfigError where nothing fits, no run can be kept, hosts are named, or --save asks a rehearsal
    for a winner.
    """
    from rankdeck import run_dir
    from rankdeck.cli.plan import predict_lines
    from rankdeck.cli.plan_target import resolve_target
    from rankdeck.launch.race import RaceRequest
    from rankdeck.planner.candidates import candidates_for

    if config.hosts.use:
        raise ConfigError(
            plural_phrase(
                tr_noop("hosts.use names a host, and a race is of this one."),
                tr_noop("hosts.use names {n} hosts, and a race is of one."),
                len(config.hosts.use),
            ),
            code="hosts",
            path="hosts.use",
            advice=phrase("Leave hosts.use out, or start each strategy by itself."),
        )
    folder = run_dir.runs_folder(runs)
    run_dir.check_can_hold_runs(folder)
    validate_name(config.name)
    target = resolve_target(config, None, None)
    if save is not None:
        check_output_file(expand_home(save))
    if save is not None and not target.like_cuda:
        raise ConfigError(
            phrase(
                "--save: these are virtual devices; which strategy is fastest on a CPU says nothing of GPUs."
            ),
            code="rehearsal",
            path="devices.use",
            advice=phrase("Leave --save out, or race on GPUs: --devices gpu:all."),
        )
    order = [row.label for row in candidates_for(config, only, target.num_devices)]
    if not order:
        raise ConfigError(
            phrase("No sensible options of {only} are known for {devices}.", only=only, devices=target.name),
            code="nothing-to-race",
            advice=phrase("Set its options in the configuration's strategy table, or race on more devices."),
        )
    if not quiet:
        console.err().print(f"planning what fits on {target.name}", style="dim")
    found = sorted(
        predict_lines(config, only, target, advice=False),
        # Whose losses the others are held to comes first.
        key=lambda one: (one.strategy != "single", order.index(one.label)),
    )
    lines, left_out = split_by_verdict(found, is_explicit=only is not None)
    if not lines:
        raise nothing_fits_error(left_out, target)
    command_line = ["rankdeck", *sys.argv[1:]]
    return RaceRequest(config, lines, left_out, steps, folder, command_line), target.num_devices


def split_by_verdict(
    found: Sequence[PlanLine], *, is_explicit: bool
) -> tuple[list[PlanLine], list[ExcludedStrategy]]:
    """(those that race, those that do not). What could not be predicted, though a run may well do it, races
    where it was `is_explicit`."""
    from rankdeck.run.plan_lines import CANNOT, FITS, TIGHT
    from rankdeck.run.race import ExcludedStrategy

    def races(line: PlanLine) -> bool:
        is_unknown = line.verdict == CANNOT and line.refusal is None
        return line.verdict in (FITS, TIGHT) or (is_explicit and is_unknown)

    left_out = [
        ExcludedStrategy(label=line.label, verdict=line.verdict, reason=line.reason, phrases=line.phrases)
        for line in found
        if not races(line)
    ]
    return [line for line in found if races(line)], left_out


def nothing_fits_error(left_out: Sequence[ExcludedStrategy], target: Target) -> ConfigError:
    labels: dict[str, list[str]] = {}
    for one in left_out:
        labels.setdefault(one.reason or one.verdict, []).append(one.label)
    told = [f"{', '.join(named)}: {reason}" for reason, named in labels.items()]
    reasons = next(iter(labels)) if len(labels) == 1 else " ".join(told[:3])
    return ConfigError(
        phrase(
            "No strategy is predicted to fit on {devices}. {reasons}", devices=target.name, reasons=reasons
        ),
        code="nothing-fits",
        advice=phrase(
            "See what to change with: rankdeck plan. A strategy that --only names is tried also where the "
            "planner cannot follow the model."
        ),
    )


def _confirm_race(asked: RaceRequest) -> bool:
    """Whether a person in a terminal wants a race of this length; short ones are not asked about."""
    from rankdeck.run.race import duration_text, estimate_duration_s

    is_asked = sys.stdin.isatty() and sys.stderr.isatty()
    if estimate_duration_s(asked.lines, asked.steps)[0] <= CONFIRM_ABOVE_S or not is_asked:
        return True
    words = duration_text(asked.lines, asked.steps)
    return typer.confirm(f"{len(asked.lines)} strategies take {words}. Race them?", default=True, err=True)


def _run_entries(racing: RaceRunner, display: RaceDisplay) -> None:
    """Entry after entry, until all are through or somebody wants it to stop."""
    from rankdeck.cli.follow import follow

    interrupts = InterruptCounter(racing.stop, display.say)

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
    """`are_entries_shown`: each entry was told of as it ended."""
    from rankdeck.cli.race_tables import print_race

    if as_json:
        console.print_json(race_facts(folder, race))
    else:
        print_race(folder, race, with_failures=not are_entries_shown)


def race_facts(folder: RaceDir, race: Race) -> dict[str, object]:
    """What `--json` prints: race.json, and where it lies."""
    return {"race": folder.name, "path": str(folder.path), **msgspec.to_builtins(race)}


def load_race(folder: RaceDir) -> Race:
    """Read a race. Raises: ConfigError where its file cannot be read."""
    from rankdeck.run.race import read_race

    found = read_race(folder)
    if found is None:
        raise ConfigError(
            phrase("{file} cannot be read, or a newer version wrote it.", file=folder.file),
            code="unreadable",
            path=str(folder.file),
        )
    return found


def show_race(folder: RaceDir, *, as_json: bool) -> int:
    """`rankdeck show` of a race. Raises: as `load_race`."""
    found = load_race(folder)
    if not as_json:
        console.out().print(found.title, style="bold")
    _print_result(folder, found, as_json=as_json)
    return 0


def stop_race(folder: RaceDir, *, timeout_s: float) -> bool:
    """Ask whoever races to stop; whether the race was over within so many seconds.

    Raises: ConfigError where its folder cannot be written, or leads elsewhere.
    """
    from rankdeck.run_dir import write_request

    write_request(folder.path, folder.stop_request.name)
    until_s = time.monotonic() + timeout_s
    while folder.is_alive():
        if time.monotonic() > until_s:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def save_winner(race: Race, asked: RunConfig, file: Path) -> None:
    """Write what was asked for with the winner's strategy; where there is none, say why.

    Raises: ConfigError where the file cannot be written.
    """
    from rankdeck.base.files import write_atomic
    from rankdeck.launch.race import entry_config

    winner = race.entry(race.verdicts.winner)
    if winner is None:
        why = "no strategy can be called fastest"
        if race.is_rehearsal:
            why = "times of a rehearsal are no GPU's"
        elif race.verdicts.inconclusive:
            why = f"the race is {race.verdicts.inconclusive[:1].lower()}{race.verdicts.inconclusive[1:-1]}"
        console.err().print(f"{file} was not written: {why}.", style="yellow", soft_wrap=True)
        return
    try:
        write_atomic(expand_home(file), entry_config(asked, winner.predicted).to_toml())
    except OSError as error:
        raise ConfigError(
            phrase("{file} cannot be written: {why}.", file=file, why=error.strerror),
            code="unwritable",
            path=str(file),
        ) from None
    console.err().print(
        f"{file} trains under {winner.label}: rankdeck train {shlex.quote(str(file))}", soft_wrap=True
    )


# `rankdeck race --detach`: the race in a process and a session of its own, which tells where it is.
#
# The one that was called waits until the other has planned and holds its devices, then says where the race
# is and leaves. What the race says from there on is in race.log of its folder; what kept it from beginning
# is said here.

ANNOUNCE_OPTION = "--announce"
LOG_NAME = "race.log"


def start_detached_race(*, as_json: bool) -> int:
    """Begin the race that this command was asked for in another process; the exit code."""
    reading, writing = os.pipe()
    words = [word for word in sys.argv[1:] if word != "--detach"]
    command = [sys.executable, "-P", "-m", "rankdeck", *words, "--yes", ANNOUNCE_OPTION, str(writing)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, sigterm_as_interrupt():
        racer = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=[writing],
            start_new_session=True,
        )
        os.close(writing)
        try:
            with open(reading, encoding="utf-8") as announced:
                path = announced.read()
            code = 0 if path else racer.wait()
        except BaseException:
            racer.terminate()
            racer.wait()
            raise
        if not path:
            _copy_output(out, sys.stdout.fileno())
            _copy_output(err, sys.stderr.fileno())
            return code
    return print_run_path(RunDir(Path(path)), as_json=as_json)


def _copy_output(said: IO[bytes], handle: int) -> None:
    said.seek(0)
    with os.fdopen(os.dup(handle), "wb") as stream:
        shutil.copyfileobj(said, stream)


def detach_to_log(race: RaceDir, handle: int) -> None:
    """Say where the race is, and go on into its log.

    Raises: BrokenPipeError where whoever asked for the race has left.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    log = os.open(race.path / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    with open(handle, "w", encoding="utf-8") as pipe:
        pipe.write(str(race.path))
