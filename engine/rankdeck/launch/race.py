"""Run a race: each strategy in turn takes the same first training steps, in a real run of its own.

    devices are chosen and leased once  ->  each entry runs under a guard, watched by the caller, and is
    summarized  ->  the first entry runs once more  ->  verdicts

This process holds the race's lock and the leases, and so does the running entry's guard, through the same
open files. The lock and the leases are therefore released exactly when no process of the race is left, even
if this process is killed. An entry takes the first steps of the requested training, with its schedule, seed
and data; it neither saves nor evaluates. Nothing here imports torch. Read run/race.py first.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from rankdeck import events, run_dir
from rankdeck.base.errors import DeviceError, RankdeckError
from rankdeck.base.files import read_toml_or_empty
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig, from_dict, on_devices
from rankdeck.config.consent import check_paths
from rankdeck.config.naming import race_title, unique_title
from rankdeck.launch import device_selection, locks
from rankdeck.launch.control import stop_if_alive
from rankdeck.launch.environment_facts import run_environment
from rankdeck.launch.guard_launcher import start_guard
from rankdeck.launch.machine import check_machine
from rankdeck.launch.processes import kill_leftovers
from rankdeck.launch.start import check_single_host
from rankdeck.run import plan_lines
from rankdeck.run import race as races
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.prediction import prediction_file
from rankdeck.run.race import ExcludedStrategy, Race, RaceEntry
from rankdeck.run.race_verdicts import finish_entry, judge
from rankdeck.run.run_state import RunState
from rankdeck.run_dir import FIRST_STEPS_KEY, RaceDir, RunDir

_MAX_SAME_TITLES = 100
"""Maximum number of similarly titled earlier races, newest first, to consider when making a title unique."""


@dataclass(frozen=True)
class RaceRequest:
    """Parameters of a race. `lines` are the lines of a plan, in the order in which their strategies run;
    `worker` is as in `start_run`."""

    config: RunConfig
    lines: Sequence[PlanLine]
    excluded: Sequence[ExcludedStrategy]
    steps: int
    runs: Path
    command_line: Sequence[str]
    worker: str | None = None


class RaceRunner:
    """Runner of a race; a context manager that records the race's end and releases its locks on exit."""

    def __init__(self, request: RaceRequest) -> None:
        """Choose the devices and create the race's folder.

        Raises:
            DeviceError: a device no longer exists, or another run holds it.
            ConfigError, DataError, ModelError, MachineError: as for a run.
        """
        check_paths(request.config)
        check_single_host(request.config)
        self._request = request
        self._devices = device_selection.resolve_devices(request.config)
        kill_leftovers()
        num_devices = len(self._devices.devices)
        check_machine(num_devices, needs_loopback=True)
        train = request.config.train
        title = _race_title(request, num_devices)
        self.folder: RaceDir = run_dir.create_race(request.runs, title, request.config.to_toml())
        is_virtual = self._devices.devices[0].kind == "virtual"
        self.race = Race(
            name=self.folder.name,
            title=title,
            began=time.time(),
            source=events.MEASURED_IN_REHEARSAL if is_virtual else events.MEASURED_ON_GPU,
            devices=self._devices.devices,
            steps=request.steps,
            global_batch=train.global_batch,
            seed=train.seed,
            precision=train.precision,
            allow_tf32=train.allow_tf32,
            entries=[_make_entry(number, line) for number, line in enumerate(request.lines, start=1)],
            left_out=list(request.excluded),
        )
        self._lock_fds: list[int] = []
        self._current_run: RunDir | None = None
        self._started_s = 0.0
        self.is_stopped = False

    def __enter__(self) -> RaceRunner:
        try:
            self._lock_fds.append(locks.lock(str(self.folder.lock), f"{os.getpid()}\n"))
            for lease in self._devices.leases:
                lease.parent.mkdir(parents=True, exist_ok=True)
                self._lock_fds.append(locks.lock(str(lease), str(self.folder.path)))
        except locks.LockHeld as refusal:
            self._release_locks()
            shutil.rmtree(self.folder.path, ignore_errors=True)
            raise device_selection.busy_error(str(refusal).strip() or "another run") from None
        self._write()
        run_dir.add_to_index(RunDir(self.folder.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for entry in self.race.entries:
            if entry.state in (races.RUNNING, races.WAITING):
                entry.state = races.STOPPED
        is_whole = kind is None and not self.is_stopped
        self.race.outcome = races.COMPLETED if is_whole else races.STOPPED
        self.race.ended = time.time()
        self._judge()
        self._release_locks()

    def entries(self) -> Iterator[RaceEntry]:
        """Yield the entries until the race is stopped; after the last entry, yield a repetition of the first
        completed entry."""
        yield from self._entries_until_stopped(list(self.race.entries))
        first = next((entry for entry in self.race.entries if entry.state == races.COMPLETED), None)
        if first is not None and not self.is_stopped:
            again = _make_entry(len(self.race.entries) + 1, first.predicted, repeats=first.number)
            self.race.entries.append(again)
            yield again

    def _entries_until_stopped(self, entries: Sequence[RaceEntry]) -> Iterator[RaceEntry]:
        for entry in entries:
            if self.is_stopped:
                return
            yield entry

    def start(self, entry: RaceEntry) -> RunDir | None:
        """Start the entry's run and return it; if the run is refused, store the problem in the entry and
        return None."""
        entry.state = races.RUNNING
        self._write()
        self._started_s = time.monotonic()
        try:
            self._current_run = self._start(entry)
        except RankdeckError as error:
            entry.state, entry.problem = races.FAILED, error.problem
            self._judge()
            return None
        return self._current_run

    def _start(self, entry: RaceEntry) -> RunDir:
        config = entry_config(self._request.config, entry.predicted, self.race.steps)
        choice = device_selection.drop_idle_devices(config, self._devices)
        kind = "cpu" if self.race.is_rehearsal else "gpu"
        config = on_devices(config, kind, len(choice.devices))
        environment = run_environment(config, choice, self._request.command_line, time.time())
        environment |= {"title": entry.label, FIRST_STEPS_KEY: self.race.steps, "race": self.race.name}
        name = Path(entry.folder).name
        hidden = run_dir.create_run_dir(self.folder.entries_folder, config, environment, name)
        with run_dir.remove_unless_started(hidden.path):
            prediction_file(hidden).write_bytes(plan_lines.encode(entry.predicted))
            # Without leases of its own: the guard shares the race's through `lock_fds`.
            return start_guard(hidden, (), detach=False, worker=self._request.worker, lock_fds=self._lock_fds)

    def finish(self, entry: RaceEntry, state: RunState) -> None:
        """Record the result of the entry's run, which has ended."""
        assert self._current_run is not None
        finish_entry(self.race, entry, self._current_run, state, time.monotonic() - self._started_s)
        self._current_run = None
        self._judge()

    def stop(self, now: bool = False) -> None:
        """End the running entry (at once if `now` is True), and start no further entries."""
        self.is_stopped = True
        if self._current_run is not None:
            stop_if_alive(self._current_run, now=now)

    @property
    def is_stop_requested(self) -> bool:
        """Whether another process has requested that the race stop."""
        return self.folder.stop_request.exists()

    def _judge(self) -> None:
        judge(self.race)
        self._write()

    def _write(self) -> None:
        try:
            races.write_race(self.folder, self.race)
        except OSError as error:
            if not self.folder.path.exists():
                raise RankdeckError(
                    phrase(
                        "The race ended because its folder was removed: {folder}.", folder=self.folder.path
                    ),
                    code="removed",
                    advice=phrase(
                        "Start the race again, and do not move or remove its folder until the race has ended."
                    ),
                ) from None
            raise RankdeckError(
                phrase("{file} cannot be written: {error}.", file=self.folder.file, error=error.strerror),
                code="race-folder",
                advice=phrase("Free some disk space. The results so far are in the race's folder."),
            ) from None

    def _release_locks(self) -> None:
        while self._lock_fds:
            os.close(self._lock_fds.pop())


def _race_title(request: RaceRequest, num_devices: int) -> str:
    """Return the race's title, made unique among the races in the runs folder."""
    name = race_title(request.config, num_devices)
    folder_races = [
        race_dir
        for race_dir in run_dir.list_races(request.runs)
        if race_dir.path.parent == request.runs.absolute()
    ]
    alike = [race_dir for race_dir in folder_races if run_dir.slug(name) in race_dir.name][:_MAX_SAME_TITLES]
    titles = {race.title: race_dir for race_dir in alike if (race := races.read_race(race_dir)) is not None}
    others = {title: partial(read_toml_or_empty, race_dir.request_file) for title, race_dir in titles.items()}
    return unique_title(name, request.config.to_dict(), others)


def check_num_devices(request: RaceRequest, num_devices: int) -> None:
    """Check that the number of devices is the same as in the plan.

    Raises:
        DeviceError: the number of devices has changed.
    """
    num_found = len(device_selection.resolve_devices(request.config).devices)
    if num_found != num_devices:
        raise DeviceError(
            phrase(
                "The number of devices has changed from {num_devices} in the plan to {found} now.",
                num_devices=num_devices,
                found=num_found,
            ),
            code="devices-changed",
            advice=phrase("Start the race again, or choose the devices, for example: --devices gpu:0,1"),
        )


def _make_entry(number: int, line: PlanLine, repeats: int | None = None) -> RaceEntry:
    return RaceEntry(
        number=number,
        folder=f"entries/{number}-{run_dir.slug(line.label)}",
        label=line.label,
        strategy=line.strategy,
        options=line.options,
        predicted=line,
        repeats=repeats,
    )


def entry_config(base: RunConfig, line: PlanLine, steps: int | None = None) -> RunConfig:
    """Return `base` with the strategy of a plan's line. If `steps` is not None, also adapt the configuration
    to a race's entry with that number of steps.

    Raises:
        ConfigError: the configuration and the strategy are not compatible.
    """
    tables = base.to_dict()
    tables["strategy"] = {"use": line.strategy, **line.options}
    if steps is not None:
        tables["launch"] |= {"max_restarts": 0, "on_hang": "stop"}
        known_steps = base.train.known_steps
        if known_steps is not None and known_steps < steps:
            tables["train"]["steps"] = steps
    return from_dict(tables, folder=Path(base.folder or "."))
