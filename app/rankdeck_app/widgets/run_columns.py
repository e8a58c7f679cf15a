"""Columns of the table of runs as data: text, sort value and grouping.

A run whose value is unknown has an empty cell, sorts last in either direction, and is in the group of unknown
values. Texts and group names are translatable phrases; their English text is used to sort rows and to
identify collapsed groups.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.base.units import format_bytes, format_duration, format_loss, format_rate
from rankdeck.run.imbalance import BALANCED
from rankdeck.run.row import EVENTS_LOST_TEXT, RunInfo, RunMetrics
from rankdeck.run.run_intervals import total_duration_s
from rankdeck_app.widgets.run_list import (
    devices_text,
    format_time_ago,
    loss_text,
    outcome_text,
    step_progress,
    steps_text,
    strategy_text,
    title_text,
)

RunGroupKey = tuple[Any, str]
"""Sort key and label of a group."""

_DAY_S = 86_400
# Listed here, since strftime would use the system's language instead of the window's.
_MONTHS = (
    tr_noop("January"), tr_noop("February"), tr_noop("March"), tr_noop("April"), tr_noop("May"),
    tr_noop("June"), tr_noop("July"), tr_noop("August"), tr_noop("September"), tr_noop("October"),
    tr_noop("November"), tr_noop("December"),
)  # fmt: skip


@dataclass(frozen=True)
class RunColumn:
    """A column of the table of runs.

    `value` returns the sort value, None if unknown. `group` returns a run's group, which by default is based
    on the run's value and text; `groups` returns all groups of a run if it can be in several. If `is_number`,
    the column is right-aligned, and the first click on its title sorts in descending order. `title` and
    `meaning` are marked for translation.
    """

    key: str
    title: str
    width: int
    """Maximum default width in pixels; for the name column, the minimum default width."""
    text: Callable[[RunInfo], str]
    value: Callable[[RunInfo], Any]
    group: Callable[[RunInfo], RunGroupKey] | None = None
    groups: Callable[[RunInfo], tuple[RunGroupKey, ...]] | None = None
    is_number: bool = False
    is_shown: bool | None = True
    """Whether the column is shown by default; if None, it is shown once any run has a value for it."""
    is_time_relative: bool = False
    """Whether the text changes as time passes."""
    meaning: str = ""

    def get_group(self, info: RunInfo) -> RunGroupKey | None:
        if self.value(info) is None:
            return None
        if self.group is not None:
            return self.group(info)
        return self.value(info), self.text(info)

    def list_groups(self, info: RunInfo) -> tuple[RunGroupKey, ...]:
        """Return every group that a run is in; empty if the run's value is unknown."""
        if self.groups is not None:
            return self.groups(info)
        bucket = self.get_group(info)
        return () if bucket is None else (bucket,)


def imbalance_text(info: RunInfo) -> str:
    imbalance = None if info.metrics is None else info.metrics.imbalance
    if imbalance is None:
        return ""
    if not imbalance.is_notable:
        return phrase(BALANCED)
    return (
        f"+{format_bytes(imbalance.excess_bytes)}" if imbalance.ratio is None else f"{imbalance.ratio:.1f}×"
    )


def _duration_s(info: RunInfo) -> float | None:
    return total_duration_s(info.intervals, time.time())


def _get_metric(name: str) -> Callable[[RunInfo], Any]:
    return lambda info: getattr(info.metrics or RunMetrics(), name)


def _make_text(value: Callable[[RunInfo], Any], write: Callable[[Any], str]) -> Callable[[RunInfo], str]:
    return lambda info: "" if (cell := value(info)) is None else write(cell)


def _group_by_decade(value: Callable[[RunInfo], Any], write: Callable[[Any], str], base: int = 10) -> Any:
    """Return a function that returns a run's group: the range between two successive powers of `base` that
    contains the run's `value`, such as '10 – 100'."""

    def bucket(info: RunInfo) -> RunGroupKey:
        number = value(info)
        if not math.isfinite(number) or number <= 0:
            return -math.inf, write(number)
        power = math.floor(math.log(number, base) + 1e-9)
        return power, f"{write(base**power)} – {write(base ** (power + 1))}"

    return bucket


def _group_by_limits(value: Callable[[RunInfo], Any], *limits: tuple[float, str]) -> Any:
    """Return a function that returns a run's group: the first of the (limit, label) pairs in `limits` whose
    limit is above the run's `value`."""
    return lambda info: next((limit, label) for limit, label in limits if value(info) < limit)


def _day_group(info: RunInfo) -> RunGroupKey:
    """Return the group of a run's start time: today, yesterday, the last seven days, or its month; newer
    groups sort first."""
    then, now = time.localtime(info.started), time.localtime()
    # Days before the last local midnight; negative for today.
    days = (time.mktime((*now[:3], 0, 0, 0, 0, 0, -1)) - (info.started or 0.0)) / _DAY_S
    for limit, label in _DAY_GROUPS:
        if days <= limit:
            return limit, label
    month = phrase("{month} {year}", month=phrase(_MONTHS[then.tm_mon - 1]), year=then.tm_year)
    # Newer months sort first, but after the groups of days.
    return 10_000_000 - (then.tm_year * 12 + then.tm_mon), month


def _number_column(
    key: str, title: str, width: int, name: str, write: Callable[[Any], str], meaning: str, **more: Any
) -> RunColumn:
    value = _get_metric(name)
    more.setdefault("group", _group_by_decade(value, write))
    text = more.pop("text", _make_text(value, write))
    return RunColumn(key, title, width, text, value, is_number=True, meaning=meaning, **more)


def _percent_text(share: float) -> str:
    return f"{share * 100:.0f} %"


def _imbalance_value(info: RunInfo) -> float | None:
    imbalance = None if info.metrics is None else info.metrics.imbalance
    if imbalance is None:
        return None
    return imbalance.ratio if imbalance.ratio is not None else math.inf if imbalance.excess_bytes else 1.0


def _imbalance_group(info: RunInfo) -> RunGroupKey:
    value = _imbalance_value(info) or 1.0
    return next((limit, label) for limit, label in _RATIO_GROUPS if value <= limit)


_SHARE_GROUPS = ((0.25, "0 – 25 %"), (0.5, "25 – 50 %"), (0.75, "50 – 75 %"), (1.0, "75 – 100 %"))
_RATIO_GROUPS = (
    (1.1, phrase(BALANCED)),
    (1.5, "1.1× – 1.5×"),
    (2.0, "1.5× – 2×"),
    (4.0, "2× – 4×"),
    (math.inf, phrase("over 4×")),
)
_DURATION_GROUPS = (
    (60, phrase("under a minute")),
    (600, phrase("1 – 10 minutes")),
    (3600, phrase("10 – 60 minutes")),
    (21_600, phrase("1 – 6 hours")),
    (_DAY_S, phrase("6 – 24 hours")),
    (math.inf, phrase("over a day")),
)
_DAY_GROUPS = ((0, phrase("Today")), (1, phrase("Yesterday")), (6, phrase("The last seven days")))
_STATES = ("running", "completed", "stopped", "failed", "lost")


def state_text(info: RunInfo) -> str:
    """Return the outcome as a text that fits in its column."""
    return phrase("events lost") if info.state == EVENTS_LOST_TEXT else outcome_text(info.state)


def _state_order(info: RunInfo) -> int:
    return _STATES.index(info.outcome) if info.outcome in _STATES else len(_STATES)


def _sort_value(text: Callable[[RunInfo], str]) -> Callable[[RunInfo], Any]:
    return lambda info: text(info).casefold() or None


def _tags_text(info: RunInfo) -> str:
    return ", ".join(info.labels.tags)


def _note_text(info: RunInfo) -> str:
    return " ".join(info.labels.note.split())


def _devices_value(info: RunInfo) -> Any:
    return None if info.num_devices is None else (info.device_kind, info.num_devices)


_LOSS_MEANING = tr_noop("Training loss of the last step; for a race, whether losses agree")

COLUMNS: tuple[RunColumn, ...] = (
    RunColumn(
        "name",
        tr_noop("Name"),
        104,
        title_text,
        lambda info: info.title.casefold(),
        group=lambda info: (info.title[:1].casefold(), info.title[:1].upper()),
    ),
    RunColumn(
        "state",
        tr_noop("State"),
        104,
        state_text,
        _state_order,
    ),
    RunColumn("strategy", tr_noop("Strategy"), 100, strategy_text, _sort_value(strategy_text)),
    RunColumn("devices", tr_noop("Devices"), 70, devices_text, _devices_value),
    RunColumn(
        "step",
        tr_noop("Step"),
        104,
        steps_text,
        # Without planned steps, step 0 is no value yet.
        lambda info: info.step or (0 if info.steps else None),
        group=lambda info: (
            (math.inf, phrase("all steps done"))
            if (step_progress(info) or 0) >= 1
            else _group_by_limits(step_progress, *_SHARE_GROUPS)(info)
            if info.steps
            else (-1, phrase("no planned end"))
        ),
        is_number=True,
        meaning=tr_noop("Completed and planned steps; for a race, its entries"),
    ),
    _number_column("loss", tr_noop("Last loss"), 72, "loss", format_loss, _LOSS_MEANING, text=loss_text),
    _number_column(
        "held_out", tr_noop("Held-out"), 70, "held_out", format_loss, tr_noop("Loss of the latest evaluation")
    ),
    _number_column(
        "peak",
        tr_noop("Peak"),
        78,
        "peak_bytes",
        format_bytes,
        tr_noop("Peak memory of the fullest device during a step"),
        # Powers of two, as usual for memory.
        group=_group_by_decade(_get_metric("peak_bytes"), lambda size: format_bytes(size, 0), 2),
    ),
    RunColumn(
        "imbalance",
        tr_noop("Imbalance"),
        82,
        imbalance_text,
        _imbalance_value,
        group=_imbalance_group,
        is_number=True,
        meaning=tr_noop("Memory of the fullest device relative to the median of the others"),
    ),
    _number_column(
        "samples_per_s",
        tr_noop("Samples/s"),
        80,
        "samples_per_s",
        format_rate,
        tr_noop("Throughput of all devices, after the warm-up"),
    ),
    _number_column(
        "bubble",
        tr_noop("Bubble"),
        68,
        "bubble",
        _percent_text,
        tr_noop("Share of a step that pipeline stages spend waiting"),
        group=_group_by_limits(_get_metric("bubble"), *_SHARE_GROUPS[:3], (math.inf, "75 – 100 %")),
        is_shown=False,
    ),
    RunColumn(
        "began",
        tr_noop("Began"),
        108,
        _make_text(lambda info: info.started, format_time_ago),
        lambda info: info.started,
        group=_day_group,
        is_number=True,
        is_time_relative=True,
    ),
    RunColumn(
        "lasted",
        tr_noop("Lasted"),
        78,
        _make_text(_duration_s, format_duration),
        _duration_s,
        group=_group_by_limits(_duration_s, *_DURATION_GROUPS),
        is_number=True,
        is_time_relative=True,
    ),
    RunColumn(
        "tags",
        tr_noop("Tags"),
        100,
        _tags_text,
        _sort_value(_tags_text),
        is_shown=None,
        groups=lambda info: tuple((tag.casefold(), tag) for tag in info.labels.tags),
    ),
    RunColumn("note", tr_noop("Note"), 160, _note_text, _sort_value(_note_text), is_shown=False),
    RunColumn(
        "folder", tr_noop("Folder"), 240, lambda info: info.name, lambda info: info.name, is_shown=False
    ),
)
COLUMNS_BY_KEY = {column.key: column for column in COLUMNS}
COLUMN_INDICES = {column.key: at for at, column in enumerate(COLUMNS)}
TIME_COLUMNS = [at for at, column in enumerate(COLUMNS) if column.is_time_relative]
NAME_COLUMN = COLUMN_INDICES["name"]
