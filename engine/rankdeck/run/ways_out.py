"""The ways out of a device that has no room: what of all that was planned needs less, ranked.

The planner is asked for every strategy, and for the configuration with one thing changed (planner/advice.py).
Figures are its own, and predicted. Read plan_lines.py before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rankdeck.base import files
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes, format_setting
from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.cures import STRATEGY
from rankdeck.run.plan_lines import CANNOT, VERDICTS, PlanLine, PlannedDevice, decode, words_of
from rankdeck.rundir import RunDir

MOST = 3


def ways_file(run: RunDir) -> Path:
    """Where the latest attempt of a run keeps what was planned for it."""
    return run.path / f"ways-out.{run.next_attempt() - 1}.jsonl"


def kept_lines(run: RunDir) -> list[PlanLine] | None:
    """What was planned for the latest attempt; None where nobody did, or it cannot be read."""
    try:
        return [decode(line) for line in files.read_bytes(ways_file(run)).splitlines()]
    except (OSError, msgspec.DecodeError):
        return None


@dataclass(frozen=True)
class WayOut:
    """`cure` is what to change, `line` what is planned then, `before` what is of the run as it was."""

    words: str
    cure: dict[str, Any]
    line: PlanLine
    before: PlanLine

    @property
    def fullest(self) -> PlannedDevice:
        found = self.line.fullest
        assert found is not None
        return found

    @property
    def saves_bytes(self) -> int:
        """On the fullest device, by both predictions."""
        before = self.before.fullest
        assert before is not None
        return before.total_bytes - self.fullest.total_bytes

    @property
    def room_bytes(self) -> int | None:
        """What would be left of the fullest device; None where nobody knows how much it has."""
        return self.fullest.room_bytes

    @property
    def headroom(self) -> str:
        """'12.1 GiB to spare', 'lacks 1.0 GiB', '3.0 GiB less than now'."""
        room = self.room_bytes
        if room is None:
            return phrase("{size} less than now", size=format_bytes(self.saves_bytes))
        if room >= 0:
            return phrase("{size} to spare", size=format_bytes(room))
        return phrase("lacks {size}", size=format_bytes(-room))

    @property
    def verdict(self) -> str:
        return "" if self.room_bytes is None else words_of(self.line)


def ways_out(lines: Iterable[PlanLine], most: int = MOST) -> list[WayOut]:
    """The best first: what fits before what is tight, what computes the same before what does not, then the
    one that needs the least. Of a strategy with several options only the best is one."""
    known = [line for line in lines if line.devices and line.verdict != CANNOT]
    own = next((line for line in known if line.configured and not line.changes), None)
    if own is None:
        return []
    found = [_way(line, own) for line in known if line is not own]
    less = sorted((way for way in found if way.saves_bytes > 0), key=_rank)
    best: dict[object, WayOut] = {}
    for way in less:
        best.setdefault(way.cure.get(STRATEGY) or tuple(way.cure), way)
    return list(best.values())[:most]


def _rank(way: WayOut) -> tuple[int, bool, bool, int]:
    line = way.line
    return VERDICTS.index(line.verdict), line.is_bound, "train.precision" in way.cure, way.fullest.total_bytes


def _way(line: PlanLine, own: PlanLine) -> WayOut:
    cure: dict[str, Any] = dict(line.changes)
    if not line.configured:
        options = STRATEGIES[line.strategy].changed(line.options)
        cure |= {STRATEGY: line.strategy, **{f"strategy.{name}": value for name, value in options.items()}}
    return WayOut(cure_name(cure), cure, line, own)


def cure_name(cure: Mapping[str, Any]) -> str:
    """'DDP', 'FSDP, reshard = false', 'train.accumulate = 2': a cure that is applied, in few words."""
    strategy = STRATEGIES.get(cure.get(STRATEGY, ""))
    rest = {key: value for key, value in cure.items() if key != STRATEGY and value is not None}
    if strategy is None:
        return ", ".join(itertools.starmap(format_setting, rest.items()))
    of_strategy = {key.removeprefix("strategy."): value for key, value in rest.items()}
    return ", ".join((strategy.title, *itertools.starmap(format_setting, of_strategy.items())))
