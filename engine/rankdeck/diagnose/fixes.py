"""Fixes: what a person can change to get out of a problem.

    a rule that refuses a configuration   names the changes itself (`Problem.cure`)
    a run that fails                      `with_fix` finds changes that its configuration can take
    a run that ran out of memory          `planned_fixes` ranks what planner/fixes.py has planned
    a run that is over                    compare/run_report.py derives fixes from the figures it measured

Changes are keys of the configuration with their values, as in `Problem.cure`.
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
"""Changes with this key replace the whole strategy: options of the one before mean nothing to another."""
EVEN_STRATEGY = {"dp": "ddp"}
"""The strategy that does the same work without one device's excess."""
MAX_PLANNED_FIXES = 3


@dataclass(frozen=True)
class Fix:
    """`text` says what to change, `reason` names the figure behind it, and `command` makes the `changes`.

    Of a fix that was planned, `plan_line` is the prediction with the changes, and `saves_bytes` what the
    fullest device needs less, by both predictions.
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
        """What would be left of the fullest device; None where nothing is planned, or its memory unknown."""
        return None if self.plan_line is None else fullest_device(self.plan_line).room_bytes

    @property
    def headroom(self) -> str:
        """'12.1 GiB to spare', 'lacks 1.0 GiB', '3.0 GiB less than now'; of a fix that was planned."""
        room = self.room_bytes
        if room is None:
            return phrase("{size} less than now", size=format_bytes(self.saves_bytes))
        if room >= 0:
            return phrase("{size} to spare", size=format_bytes(room))
        return phrase("lacks {size}", size=format_bytes(-room))

    @property
    def verdict(self) -> str:
        return "" if self.plan_line is None or self.room_bytes is None else plan_verdict_text(self.plan_line)


def fullest_device(line: PlanLine) -> PlannedDevice:
    """The fullest device of a line that has devices."""
    found = line.fullest_device
    assert found is not None
    return found


# Changes of a configuration


def config_or_none(run: RunDir) -> RunConfig | None:
    """The configuration that fixes of a run change; None for a script's, or where it cannot be read."""
    try:
        return run.config()
    except ConfigError:
        return None


def changes_label(changes: Changes) -> str:
    """'DDP', 'FSDP, reshard = false', 'train.accumulate = 2': changes in few words."""
    strategy = STRATEGIES.get(changes.get(STRATEGY_KEY, ""))
    rest = {key: value for key, value in changes.items() if key != STRATEGY_KEY and value is not None}
    if strategy is None:
        return ", ".join(itertools.starmap(format_setting, rest.items()))
    of_strategy = {key.removeprefix("strategy."): value for key, value in rest.items()}
    return ", ".join((strategy.title, *itertools.starmap(format_setting, of_strategy.items())))


def cli_options(changes: Changes) -> list[str]:
    """The options of `rankdeck resume` or `train` that make the changes."""
    options = [] if STRATEGY_KEY not in changes else ["--strategy", str(changes[STRATEGY_KEY])]
    for key, value in _settings(changes):
        options += ["--set", f"{key}={value}"]
    return options


def fix_command(run: RunDir, changes: Changes) -> list[str]:
    """The command that makes the changes: resume from the newest checkpoint, or without one train anew."""
    if list_checkpoints(run.checkpoints_folder):
        return ["rankdeck", "resume", run.name, *cli_options(changes)]
    return ["rankdeck", "train", str(run.config_to_resume), *cli_options(changes)]


def apply_changes(config: RunConfig, changes: Changes) -> RunConfig:
    """The configuration with the changes made.

    Raises:
        ConfigError: they do not go together with the rest.
    """
    folder = Path(config.folder or ".")
    overrides = [f"{key}={value}" for key, value in _settings(changes)]
    return from_text(config.to_toml(), folder=folder, strategy=changes.get(STRATEGY_KEY), overrides=overrides)


def accepts_changes(config: RunConfig, changes: Changes) -> bool:
    """Whether the configuration's own rules accept the changes."""
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


# Of a problem of a run that has started


def is_memory_problem(problem: Problem) -> bool:
    """Whether a problem says that a device, or one that a rehearsal pretends, had no room."""
    return problem.code in ("out-of-memory", "over-capacity")


def with_fix(problem: Problem, config: RunConfig) -> Problem:
    """The problem with the first changes that this configuration can take, its own before those of its kind;
    or with none."""
    own = [problem.cure] if problem.cure else []
    possible = (
        changes for changes in (*own, *_possible_changes(problem, config)) if accepts_changes(config, changes)
    )
    return msgspec.structs.replace(problem, cure=dict(next(possible, {})))


def _possible_changes(problem: Problem, config: RunConfig) -> Iterator[Changes]:
    train, known = config.train, config.strategy_spec.options.model_fields
    match problem.code:
        case "out-of-memory" | "over-capacity":
            if not train.activation_checkpointing and ":" not in config.model.use:
                yield {"train.activation_checkpointing": True}
            yield {"train.accumulate": 2 * train.accumulate}
            if config.strategy.use in EVEN_STRATEGY:
                yield {STRATEGY_KEY: EVEN_STRATEGY[config.strategy.use]}
        case "unused-parameters" if "find_unused_parameters" in known:
            yield {"strategy.find_unused_parameters": True}
        case "ready-twice" if "static_graph" in known:
            yield {"strategy.static_graph": True}
        case "batch-of-one" if "sync_batchnorm" in known:
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
    if problem.path == "strategy.sync_batchnorm" and "sync_batchnorm" in known:
        yield {"strategy.sync_batchnorm": True}


# Of a run that ran out of memory: what of all that the planner was asked about needs less, ranked.


def fixes_file(run: RunDir) -> Path:
    """Where the latest attempt of a run keeps what was planned for it."""
    return run.path / f"ways-out.{run.next_attempt() - 1}.jsonl"


def read_planned_lines(run: RunDir) -> list[PlanLine] | None:
    """What was planned for the latest attempt; None where nothing was, or it cannot be read."""
    try:
        return [decode(line) for line in files.read_bytes(fixes_file(run)).splitlines()]
    except (OSError, msgspec.DecodeError):
        return None


def planned_fixes(lines: Iterable[PlanLine], run: RunDir | None = None) -> list[Fix]:
    """The best first: what fits before what is tight, what computes the same before what does not, then the
    one that needs the least. Of a strategy with several options only the best is one. `run` is the one that
    a fix's command is for.
    """
    known = [line for line in lines if line.devices and line.verdict != CANNOT]
    own = next((line for line in known if line.configured and not line.changes), None)
    if own is None:
        return []
    found = [_planned_fix(line, own, run) for line in known if line is not own]
    best: dict[object, Fix] = {}
    for fix in sorted((fix for fix in found if fix.saves_bytes > 0), key=_sort_key):
        best.setdefault(fix.changes.get(STRATEGY_KEY) or tuple(fix.changes), fix)
    return list(best.values())[:MAX_PLANNED_FIXES]


def strategy_changes(line: PlanLine) -> dict[str, object]:
    """The strategy of a planned line and its options, but the default ones, as changes."""
    options = STRATEGIES[line.strategy].non_default_options(line.options)
    return {STRATEGY_KEY: line.strategy, **{f"strategy.{name}": value for name, value in options.items()}}


def _sort_key(fix: Fix) -> tuple[int, bool, bool, int]:
    line = fix.plan_line
    assert line is not None
    verdict = VERDICTS.index(line.verdict)
    return verdict, line.is_bound, "train.precision" in fix.changes, fullest_device(line).total_bytes


def _planned_fix(line: PlanLine, own: PlanLine, run: RunDir | None) -> Fix:
    changes = line.changes if line.configured else line.changes | strategy_changes(line)
    command = [] if run is None else fix_command(run, changes)
    saves_bytes = fullest_device(own).total_bytes - fullest_device(line).total_bytes
    return Fix(
        changes_label(changes), changes=changes, command=command, plan_line=line, saves_bytes=saves_bytes
    )
