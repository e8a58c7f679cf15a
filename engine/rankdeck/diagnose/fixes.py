"""Find fixes: what a user can change to solve a problem.

Fixes have a different source in each case:

    a rule refuses a configuration   the rule names the changes itself (`Problem.cure`)
    a run failed                     `with_fix` finds changes that the run's configuration accepts
    a run ran out of memory          `planned_fixes` ranks the plans of planner/fixes.py
    a run is over                    compare/run_report.py derives fixes from the run's metrics

Changes map keys of the configuration to their values, as in `Problem.cure`.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rankdeck.base import files
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes, format_setting
from rankdeck.checkpoint_files import list_checkpoints
from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.loading import from_text
from rankdeck.config.schema import RunConfig
from rankdeck.run.plan_lines import CANNOT, VERDICTS, PlanLine, PlannedDevice, decode, plan_verdict_text
from rankdeck.run_dir import RunDir

Changes = Mapping[str, Any]
STRATEGY_KEY = "strategy.use"
"""Changes with this key replace the whole strategy, because another strategy has other options."""
EVEN_STRATEGY = {"dp": "ddp"}
"""Strategies that fill one device more than the others, mapped to strategies that distribute the same work
evenly."""
MAX_PLANNED_FIXES = 3


@dataclass(frozen=True)
class Fix:
    """A fix: `text` describes what to change, `reason` names the metric that suggests it, and `command`
    applies the `changes`.

    For a planned fix, `plan_line` is the prediction with the changes. `saves_bytes` is the predicted memory
    that the changes save on the fullest device.
    """

    text: str
    reason: str = ""
    changes: Changes = field(default_factory=dict)
    command: Sequence[str] = ()
    plan_line: PlanLine | None = None
    saves_bytes: int = 0

    @property
    def command_line(self) -> str:
        return shlex.join(self.command)

    @property
    def room_bytes(self) -> int | None:
        """Predicted free memory of the fullest device; None without a plan or a known capacity."""
        return None if self.plan_line is None else fullest_device(self.plan_line).room_bytes

    @property
    def headroom(self) -> str:
        """Headroom of a planned fix: '12.1 GiB to spare', '1.0 GiB short' or '3.0 GiB less than now'."""
        room = self.room_bytes
        if room is None:
            return phrase("{size} less than now", size=format_bytes(self.saves_bytes))
        if room >= 0:
            return phrase("{size} to spare", size=format_bytes(room))
        return phrase("{size} short", size=format_bytes(-room))

    @property
    def verdict(self) -> str:
        return "" if self.plan_line is None or self.room_bytes is None else plan_verdict_text(self.plan_line)


def fullest_device(line: PlanLine) -> PlannedDevice:
    """Return the fullest device of a plan line that has devices."""
    device = line.fullest_device
    assert device is not None
    return device


# Changes to a configuration.


def config_or_none(run: RunDir) -> RunConfig | None:
    """Return the configuration that a run's fixes change; None for a script, or if the file cannot be
    read."""
    try:
        return run.config()
    except ConfigError:
        return None


def changes_label(changes: Changes) -> str:
    """Return a label for changes, such as 'DDP', 'FSDP, reshard = false' or 'train.accumulate = 2'."""
    strategy = STRATEGIES.get(changes.get(STRATEGY_KEY, ""))
    rest = {key: value for key, value in changes.items() if key != STRATEGY_KEY and value is not None}
    if strategy is None:
        return ", ".join(itertools.starmap(format_setting, rest.items()))
    of_strategy = {key.removeprefix("strategy."): value for key, value in rest.items()}
    return ", ".join((strategy.title, *itertools.starmap(format_setting, of_strategy.items())))


def cli_options(changes: Changes) -> list[str]:
    """Return the options of `rankdeck resume` or `train` that apply the changes."""
    options = [] if STRATEGY_KEY not in changes else ["--strategy", str(changes[STRATEGY_KEY])]
    for key, value in _settings(changes):
        options += ["--set", f"{key}={value}"]
    return options


def fix_command(run: RunDir, changes: Changes) -> list[str]:
    """Return the command that applies the changes: resume from the newest checkpoint, or if there is none,
    train from the start."""
    if list_checkpoints(run.checkpoints_folder):
        return ["rankdeck", "resume", run.name, *cli_options(changes)]
    return ["rankdeck", "train", str(run.config_to_resume), *cli_options(changes)]


def apply_changes(config: RunConfig, changes: Changes) -> RunConfig:
    """Return the configuration with the changes applied.

    Raises:
        ConfigError: the changes conflict with the rest of the configuration.
    """
    folder = Path(config.folder or ".")
    overrides = [f"{key}={value}" for key, value in _settings(changes)]
    return from_text(config.to_toml(), folder=folder, strategy=changes.get(STRATEGY_KEY), overrides=overrides)


def accepts_changes(config: RunConfig, changes: Changes) -> bool:
    """Check whether the configuration would still be valid with the changes."""
    try:
        apply_changes(config, changes)
    except ConfigError:
        return False
    return True


def _settings(changes: Changes) -> Iterator[tuple[str, str]]:
    return (
        (key, json.dumps(value))
        for key, value in changes.items()
        if key != STRATEGY_KEY and value is not None
    )


# Fixes for a problem of a run that has started.


def is_memory_problem(problem: Problem) -> bool:
    """Check whether a problem reports too little memory on a device, real or simulated."""
    return problem.code in ("out-of-memory", "over-capacity")


def with_fix(problem: Problem, config: RunConfig) -> Problem:
    """Return the problem with the first set of changes that this configuration accepts, or without changes.

    The problem's own changes are tried before the usual changes for problems with its code.
    """
    own_changes = [problem.cure] if problem.cure else []
    possible = (
        changes
        for changes in (*own_changes, *_possible_changes(problem, config))
        if accepts_changes(config, changes)
    )
    return msgspec.structs.replace(problem, cure=dict(next(possible, {})))


def _possible_changes(problem: Problem, config: RunConfig) -> Iterator[Changes]:
    train, option_names = config.train, config.strategy_spec.options.model_fields
    match problem.code:
        case "out-of-memory" | "over-capacity":
            # A user's own model ("file.py:name") may have no list of blocks that checkpointing could wrap.
            if not train.activation_checkpointing and ":" not in config.model.use:
                yield {"train.activation_checkpointing": True}
            yield {"train.accumulate": 2 * train.accumulate}
            if config.strategy.use in EVEN_STRATEGY:
                yield {STRATEGY_KEY: EVEN_STRATEGY[config.strategy.use]}
        case "unused-parameters" if "find_unused_parameters" in option_names:
            yield {"strategy.find_unused_parameters": True}
        case "ready-twice" if "static_graph" in option_names:
            yield {"strategy.static_graph": True}
        case "batch-of-one" if "sync_batchnorm" in option_names:
            yield {"strategy.sync_batchnorm": True}
        case "compile-failed" if train.compile:
            yield {"train.compile": False}
        case "shared-memory" | "data-worker-died" | "too-many-files" if config.data.workers:
            yield {"data.workers": 0}
        case "loss-not-finite":
            if train.precision == "fp16":
                yield {"train.precision": "bf16"}
            if not train.clip_norm:
                yield {"train.clip_norm": 1.0}
    if problem.path == "strategy.sync_batchnorm" and "sync_batchnorm" in option_names:
        yield {"strategy.sync_batchnorm": True}


# Fixes for a run that ran out of memory: the planner's lines that need less, ranked.


def fixes_file(run: RunDir) -> Path:
    """Return the path of the file with the fixes that were planned for the latest attempt."""
    # The file name is that of earlier releases, whose runs must stay readable.
    return run.path / f"ways-out.{run.next_attempt() - 1}.jsonl"


def read_planned_lines(run: RunDir) -> list[PlanLine] | None:
    """Return the plan lines of the latest attempt's fixes; None if their file is missing or unreadable."""
    try:
        return [decode(line) for line in files.read_bytes(fixes_file(run)).splitlines()]
    except (OSError, msgspec.DecodeError):
        return None


def planned_fixes(lines: Iterable[PlanLine], run: RunDir | None = None) -> list[Fix]:
    """Return the fixes that the plan lines describe, the best first.

    The order is by verdict (fits, tight, does not fit), then exact predictions before bounds, then an
    unchanged computation before a changed one, then the least memory first. Of several lines with the same
    strategy, only the best is returned. If `run` is not None, the fixes include commands.
    """
    planned = [line for line in lines if line.devices and line.verdict != CANNOT]
    configured = next((line for line in planned if line.configured and not line.changes), None)
    if configured is None:
        return []
    fixes = [_planned_fix(line, configured, run) for line in planned if line is not configured]
    best: dict[object, Fix] = {}
    for fix in sorted((fix for fix in fixes if fix.saves_bytes > 0), key=_sort_key):
        # Fixes are sorted, so setdefault keeps the best of each strategy or set of keys.
        best.setdefault(fix.changes.get(STRATEGY_KEY) or tuple(fix.changes), fix)
    return list(best.values())[:MAX_PLANNED_FIXES]


def strategy_changes(line: PlanLine) -> dict[str, object]:
    """Return a plan line's strategy and the strategy's non-default options as changes."""
    options = STRATEGIES[line.strategy].non_default_options(line.options)
    return {STRATEGY_KEY: line.strategy, **{f"strategy.{name}": value for name, value in options.items()}}


def _sort_key(fix: Fix) -> tuple[int, bool, bool, int]:
    line = fix.plan_line
    assert line is not None
    verdict = VERDICTS.index(line.verdict)
    return verdict, line.is_bound, "train.precision" in fix.changes, fullest_device(line).total_bytes


def _planned_fix(line: PlanLine, configured: PlanLine, run: RunDir | None) -> Fix:
    changes = line.changes if line.configured else line.changes | strategy_changes(line)
    command = [] if run is None else fix_command(run, changes)
    saves_bytes = fullest_device(configured).total_bytes - fullest_device(line).total_bytes
    return Fix(
        changes_label(changes), changes=changes, command=command, plan_line=line, saves_bytes=saves_bytes
    )
