"""Races from Python: what `rankdeck race --detach` does, and an object that reads the race's folder.

A race plans first, with torch: so it is another process from its first moment on, and outlives this one.
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
    """Race what fits: every strategy that a plan finds room for (or those of `only`) trains the same `steps`
    from one seed, one after another on the same devices.

    `config`, `devices`, `overrides` and `runs` as for `train`. With `wait` this returns once the race is over
    and shows a line for each entry; Ctrl-C stops it, keeps what was measured, and is raised. Without, it
    returns once the race has been planned. It goes on by itself either way.

    Raises:
        RankdeckError: nothing fits, or what was asked for cannot be raced.
    """
    with translate_errors():
        check_texts(devices=devices, runs=runs)
        words = [] if only is None else ["--only", _strategy_names(only)]
        if not (isinstance(steps, int) and MIN_STEPS <= steps <= MAX_STEPS):
            advice = phrase("Write a whole number from {least} to {most}.", least=MIN_STEPS, most=MAX_STEPS)
            raise argument_error("steps", steps, tr_noop("{name} = {value} is no number of steps."), advice)
        chosen = resolve_config(config, None, devices, None, override_arguments(overrides))
        words += ["--steps", str(steps), "--runs", str(runs_folder(runs))]
        made = Raced(_start_race(chosen, words))
    return made.wait(progress=progress) if wait else made


def _strategy_names(only: Any) -> str:
    names = [only] if isinstance(only, str) else list(only) if isinstance(only, Iterable) else [only]
    if not names or not all(isinstance(name, str) and name for name in names):
        advice = phrase('As in only=["ddp", "fsdp"].')
        raise argument_error("only", only, tr_noop("{name} = {value} is no list of strategies."), advice)
    return ",".join(names)


def _start_race(config: RunConfig, words: Sequence[str]) -> Path:
    """The folder of a race that was begun. Raises: RankdeckError with what the racer says."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "race.toml"
        file.write_text(config.to_toml(), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "rankdeck", "race", str(file), *words, "--detach", "--json"]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    out, last = (stream.strip().rpartition(b"\n")[2] for stream in (done.stdout, done.stderr))
    begun = CommandResult.parse(out)
    if begun.path and done.returncode == 0:
        return Path(begun.path)
    if begun.problems:
        raise ConfigError(begun.problems[0].message, problems=begun.problems)
    message = phrase(
        "The race could not be begun: it ended with exit status {status}", status=done.returncode
    )
    if last:
        message = phrase("The race could not be begun: {last}", last=last.decode("utf-8", "replace"))
    raise RankdeckError(message, code="race")


class Raced:
    """A race by its folder, read when it is asked for, so that one that goes on tells more each time."""

    def __init__(self, path: Path) -> None:
        self._dir = RaceDir(path)

    @property
    def name(self) -> str:
        """The name of its folder, which `rankdeck show`, `stop` and `label` take."""
        return self._dir.name

    @property
    def path(self) -> Path:
        return self._dir.path

    @property
    def outcome(self) -> str:
        """running, completed, stopped or lost."""
        return self._read().outcome

    @property
    def entries(self) -> list[RaceEntry]:
        """In the order in which they run: label, state, predicted, measured, agreement, place, problem."""
        return self._read().entries

    @property
    def fastest(self) -> str | None:
        """The label of the first place."""
        return self._label(self._read().verdicts.fastest)

    @property
    def winner(self) -> str | None:
        """The same where its times are those of GPUs; None in a rehearsal."""
        return self._label(self._read().verdicts.winner)

    @property
    def facts(self) -> dict[str, Any]:
        """What `rankdeck show RACE --json` tells."""
        return race_facts(self._dir, self._read())

    def run(self, label: str) -> Run:
        """The run of an entry. Raises: ConfigError where none is called so."""
        return Run(entry_run(self._dir, self._find_entry(label)).path)

    def config(self, label: str) -> RunConfig:
        """What was asked for with an entry's strategy, for `train`: the whole training, not its first steps.

        Raises:
            ConfigError: no entry is called so, or its folder cannot be read.
        """
        entry = self._find_entry(label)
        try:
            asked = read_text(self._dir.request_file)
        except OSError as error:
            raise ConfigError(
                phrase("{file} cannot be read: {why}.", file=self._dir.request_file, why=error.strerror)
            ) from None
        return entry_config(from_text(asked, folder=self._dir.path), entry.predicted)

    def wait(self, timeout_s: float | None = None, *, progress: bool = False) -> Raced:
        """Return once the race is over.

        Raises:
            RankdeckError: it is not over within `timeout_s`; it goes on.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        shown = 0
        if progress:
            console.out().print(race_introduction(self._read()), style="dim", soft_wrap=True)
        try:
            while True:
                is_alive = self._dir.is_alive()
                found = self._read()
                done = [entry for entry in found.entries if entry.is_over]
                for entry in done[shown:] if progress else ():
                    console.out().print(entry_line(found, entry), soft_wrap=True)
                shown = len(done)
                if not is_alive:
                    return self
                if until_s is not None and time.monotonic() > until_s:
                    raise RankdeckError(
                        phrase(
                            "{race} is not over within {timeout_s:g} s.", race=self.name, timeout_s=timeout_s
                        ),
                        code="timeout",
                        advice=phrase("Wait longer, or stop it with stop()."),
                    )
                time.sleep(_POLL_INTERVAL_S)
        except KeyboardInterrupt:
            self.stop()
            raise

    def stop(self) -> Raced:
        """End the entry that runs, start no other, and return once that is done.

        Raises:
            RankdeckError: it has not stopped within a minute.
        """
        if self._dir.is_alive() and not stop_race(self._dir, timeout_s=_STOP_TIMEOUT_S):
            raise RankdeckError(
                phrase(
                    "{race} has not stopped within {timeout_s:.0f} s.",
                    race=self.name,
                    timeout_s=_STOP_TIMEOUT_S,
                ),
                code="not-stopped",
            )
        return self

    def check(self) -> Raced:
        """The race itself, where all completed and losses agree or are known not to.

        Raises:
            TrainingError: it was stopped or lost, an entry failed, or trains otherwise for no known reason.
        """
        found = self._read()
        if found.outcome == RUNNING or (found.outcome == "completed" and not found.exit_code):
            return self
        bad = [entry for entry in found.entries if entry.state == FAILED]
        apart = [one for one in found.entries if one.agreement and one.agreement.verdict == DIFFERS]
        problems = [entry.problem for entry in bad if entry.problem is not None]
        told = [phrase("{label} failed", label=one.label) for one in bad]
        told += [phrase("losses of {label} differ", label=one.label) for one in apart]
        if told:
            message = phrase(
                "{race}: {told}.", race=self.name, told=join_phrases(told, tr_noop("{before}; {one}"))
            )
        else:
            message = phrase("{race}: it is {outcome}.", race=self.name, outcome=found.outcome)
        raise TrainingError(message, problems=problems)

    def __repr__(self) -> str:
        found = self._read()
        fastest = self._label(found.verdicts.fastest)
        last = "" if fastest is None else f", {fastest} fastest"
        return (
            f"<Raced {self.name}: {found.outcome}, {found.num_finished} of {len(found.unique_entries)}{last}>"
        )

    def _label(self, number: int | None) -> str | None:
        entry = self._read().entry(number)
        return None if entry is None else entry.label

    def _find_entry(self, label: str) -> RaceEntry:
        field = self._read().unique_entries
        for entry in field:
            if entry.label == label:
                return entry
        known = ", ".join(entry.label for entry in field)
        raise ConfigError(
            phrase("{race} has no entry {label!r}.", race=self.name, label=label),
            code="no-entry",
            advice=phrase("There are: {known}.", known=known),
        )

    def _read(self) -> RaceFile:
        return load_race(self._dir)
