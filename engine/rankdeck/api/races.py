"""Races from Python: the counterpart of `rankdeck race --detach`, and an object that reads a race directory.

A race starts by planning, which imports torch, so races run in separate processes that outlive the caller.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankdeck.api.arguments import argument_error, check_texts, override_arguments, translate_errors
from rankdeck.api.run_object import Run
from rankdeck.api.runs import Config, resolve_config
from rankdeck.base.errors import ConfigError, RankdeckError, TrainingError
from rankdeck.base.files import read_text
from rankdeck.base.phrases import join_phrases, phrase, tr_noop
from rankdeck.cli import console
from rankdeck.cli.race import MAX_STEPS, MIN_STEPS, load_race, race_facts, stop_race
from rankdeck.cli.race_tables import entry_line, race_introduction
from rankdeck.config import RunConfig, from_text
from rankdeck.launch.race import entry_config
from rankdeck.remote.hosts import CommandResult
from rankdeck.run.bounds import RACE_STEPS
from rankdeck.run.race import DIFFERS, FAILED, RUNNING, RaceEntry, entry_run
from rankdeck.run.race import Race as RaceFile
from rankdeck.run_dir import RaceDir, runs_folder

_POLL_INTERVAL_S = 0.2
_STOP_TIMEOUT_S = 60.0


def race(
    config: Config,
    *,
    devices: str | None = None,
    only: Sequence[str] | str | None = None,
    steps: int = RACE_STEPS,
    overrides: Mapping[str, Any] | Iterable[str] | None = None,
    runs: str | Path | None = None,
    wait: bool = True,
    progress: bool = True,
) -> Raced:
    """Race all strategies that fit.

    Every strategy that fits according to the plan trains for `steps` steps from the same seed, one after
    another on the same devices. `only` limits the race to some strategies, which take part even if their
    memory cannot be predicted. `config`, `devices`, `overrides` and `runs` work as in `train`.

    If `wait` is True, return once the race is over. Until then, a line is printed for each entry if
    `progress` is True, and Ctrl-C stops the race, keeps its measurements and raises KeyboardInterrupt. If
    `wait` is False, return once the race has been planned; it continues in its own process.

    Raises:
        RankdeckError: an argument is invalid, no strategy fits, or the race cannot be started.
    """
    with translate_errors():
        check_texts(devices=devices, runs=runs)
        options = [] if only is None else ["--only", _strategy_names(only)]
        if not (isinstance(steps, int) and MIN_STEPS <= steps <= MAX_STEPS):
            advice = phrase("Write a whole number from {least} to {most}.", least=MIN_STEPS, most=MAX_STEPS)
            raise argument_error(
                "steps", steps, tr_noop("{name} = {value} is not a valid number of steps."), advice
            )
        chosen = resolve_config(config, None, devices, None, override_arguments(overrides))
        options += ["--steps", str(steps), "--runs", str(runs_folder(runs))]
        raced = Raced(_start_race(chosen, options))
    return raced.wait(progress=progress) if wait else raced


def _strategy_names(only: Any) -> str:
    names = [only] if isinstance(only, str) else list(only) if isinstance(only, Iterable) else [only]
    if not names or not all(isinstance(name, str) and name for name in names):
        advice = phrase('Pass a list, as in only=["ddp", "fsdp"].')
        raise argument_error("only", only, tr_noop("{name} = {value} is not a list of strategies."), advice)
    return ",".join(names)


def _start_race(config: RunConfig, options: Sequence[str]) -> Path:
    """Start a race and return its directory.

    Raises:
        RankdeckError: the race could not be started; the message comes from the race process.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "race.toml"
        file.write_text(config.to_toml(), encoding="utf-8")
        # -P: modules in the caller's working directory must not shadow those of the engine.
        command = [sys.executable, "-P", "-m", "rankdeck", "race", str(file), *options, "--detach", "--json"]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    # The last line holds the result; on stderr, the error.
    out, last = (stream.strip().rpartition(b"\n")[2] for stream in (done.stdout, done.stderr))
    result = CommandResult.parse(out)
    if result.path and done.returncode == 0:
        return Path(result.path)
    if result.problems:
        raise ConfigError(result.problems[0].message, problems=result.problems)
    message = phrase(
        "The race could not be started: its process exited with status {status}", status=done.returncode
    )
    if last:
        message = phrase("The race could not be started: {last}", last=last.decode("utf-8", "replace"))
    raise RankdeckError(message, code="race")


class Raced:
    """A race, read from its directory on each access, so a running race shows its latest state."""

    def __init__(self, path: Path) -> None:
        self._dir = RaceDir(path)

    @property
    def name(self) -> str:
        """The name of the race directory, which `rankdeck show`, `stop` and `label` accept."""
        return self._dir.name

    @property
    def path(self) -> Path:
        return self._dir.path

    @property
    def outcome(self) -> str:
        """The outcome: running, completed, stopped or lost."""
        return self._read().outcome

    @property
    def entries(self) -> list[RaceEntry]:
        """The entries in the order in which they run, each with `label`, `state`, `predicted`, `measured`,
        `agreement`, `place` and `problem`."""
        return self._read().entries

    @property
    def fastest(self) -> str | None:
        """The label of the fastest entry, or None."""
        return self._label(self._read().verdicts.fastest)

    @property
    def winner(self) -> str | None:
        """The label of the fastest entry if its times were measured on GPUs; None in a rehearsal."""
        return self._label(self._read().verdicts.winner)

    @property
    def facts(self) -> dict[str, Any]:
        """The output of `rankdeck show RACE --json`."""
        return race_facts(self._dir, self._read())

    def run(self, label: str) -> Run:
        """Return the run of an entry.

        Raises:
            ConfigError: no entry has this label.
        """
        return Run(entry_run(self._dir, self._find_entry(label)).path)

    def config(self, label: str) -> RunConfig:
        """Return the race's configuration with the strategy of one entry, as an argument for `train`.

        A run with this configuration trains for the full number of steps, not for the race's number of steps.

        Raises:
            ConfigError: no entry has this label, or the race directory cannot be read.
        """
        entry = self._find_entry(label)
        try:
            request_text = read_text(self._dir.request_file)
        except OSError as error:
            raise ConfigError(
                phrase("{file} cannot be read: {why}.", file=self._dir.request_file, why=error.strerror)
            ) from None
        return entry_config(from_text(request_text, folder=self._dir.path), entry.predicted)

    def wait(self, timeout_s: float | None = None, *, progress: bool = False) -> Raced:
        """Return once the race is over.

        If `progress` is True, print a line per entry. Ctrl-C stops the race and raises KeyboardInterrupt.

        Raises:
            RankdeckError: the race is not over within `timeout_s`; it continues.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        num_printed = 0
        if progress:
            console.out().print(race_introduction(self._read()), style="dim", soft_wrap=True)
        try:
            while True:
                # Read before the entries: once the race has ended, they are final.
                is_alive = self._dir.is_alive()
                race = self._read()
                done = [entry for entry in race.entries if entry.is_over]
                for entry in done[num_printed:] if progress else ():
                    console.out().print(entry_line(race, entry), soft_wrap=True)
                num_printed = len(done)
                if not is_alive:
                    return self
                if until_s is not None and time.monotonic() > until_s:
                    raise RankdeckError(
                        phrase(
                            "{race} did not finish within {timeout_s:g} s.",
                            race=self.name,
                            timeout_s=timeout_s,
                        ),
                        code="timeout",
                        advice=phrase("Wait longer, or stop the race with stop()."),
                    )
                time.sleep(_POLL_INTERVAL_S)
        except KeyboardInterrupt:
            self.stop()
            raise

    def stop(self) -> Raced:
        """Stop the running entry, start no further ones, and return once the race has ended.

        Raises:
            RankdeckError: the race has not stopped within a minute.
        """
        if self._dir.is_alive() and not stop_race(self._dir, timeout_s=_STOP_TIMEOUT_S):
            raise RankdeckError(
                phrase(
                    "{race} did not stop within {timeout_s:.0f} s.",
                    race=self.name,
                    timeout_s=_STOP_TIMEOUT_S,
                ),
                code="not-stopped",
            )
        return self

    def check(self) -> Raced:
        """Return the race itself unless it was stopped or lost, an entry failed, or an entry's losses differ
        from the reference for no known reason.

        A race that is still running passes.

        Raises:
            TrainingError: the race does not pass; the error's `problems` are those of the failed entries.
        """
        race = self._read()
        if race.outcome == RUNNING or (race.outcome == "completed" and not race.exit_code):
            return self
        bad = [entry for entry in race.entries if entry.state == FAILED]
        apart = [
            race_entry
            for race_entry in race.entries
            if race_entry.agreement and race_entry.agreement.verdict == DIFFERS
        ]
        problems = [entry.problem for entry in bad if entry.problem is not None]
        reasons = [phrase("{label} failed", label=race_entry.label) for race_entry in bad]
        reasons += [phrase("losses of {label} differ", label=race_entry.label) for race_entry in apart]
        if reasons:
            message = phrase(
                "{race}: {told}.", race=self.name, told=join_phrases(reasons, tr_noop("{before}; {one}"))
            )
        else:
            message = phrase(
                '{race}: the race ended with outcome "{outcome}".', race=self.name, outcome=race.outcome
            )
        raise TrainingError(message, problems=problems)

    def __repr__(self) -> str:
        race = self._read()
        fastest = self._label(race.verdicts.fastest)
        last = "" if fastest is None else f", {fastest} fastest"
        return f"<Raced {self.name}: {race.outcome}, {race.num_finished} of {len(race.unique_entries)}{last}>"

    def _label(self, number: int | None) -> str | None:
        entry = self._read().entry(number)
        return None if entry is None else entry.label

    def _find_entry(self, label: str) -> RaceEntry:
        field = self._read().unique_entries
        for entry in field:
            if entry.label == label:
                return entry
        labels = ", ".join(entry.label for entry in field)
        raise ConfigError(
            phrase("{race} has no entry {label!r}.", race=self.name, label=label),
            code="no-entry",
            advice=phrase("Entries: {known}.", known=labels),
        )

    def _read(self) -> RaceFile:
        return load_race(self._dir)
