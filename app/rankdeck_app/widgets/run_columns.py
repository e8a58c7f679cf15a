"""The columns of the table of runs as data: what each says of a run, what it sorts by, how it parts runs into
groups.

What is not known is said by an empty cell, sorts last whichever way, and is a group of its own. Texts and
names of groups are phrases: the English is what rows are sorted by and what is remembered of a group.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankdeck.base.phrases import marked, phrase
from rankdeck.base.units import format_bytes, format_duration, format_loss, format_rate
from rankdeck.run.imbalance import BALANCED
from rankdeck.run.row import EVENTS_LOST, RunFigures, RunInfo
from rankdeck.run.spells import lasted_s
from rankdeck_app.widgets.run_list import (
    ago,
    devices_text,
    loss_text,
    outcome_text,
    step_share,
    steps_text,
    strategy_text,
    title_text,
)

Bucket = tuple[Any, str]
"""What groups are ordered by, and what a group is called."""

_DAY_S = 86_400
_MONTHS = (
    marked("January"), marked("February"), marked("March"), marked("April"), marked("May"), marked("June"),
    marked("July"), marked("August"), marked("September"), marked("October"), marked("November"),
    marked("December"),
)  # fmt: skip


@dataclass(frozen=True)
class RunColumn:
    """`value` is what rows are sorted by, None where it is not known; `bucket` the group that a run is in,
    by default that of its text; `buckets` all of them, where it may be in several. `is_number`: at the right,
    the largest first when it is sorted for the first time. `title` and `meaning` are marked.
    """

    key: str
    title: str
    width: int
    """In pixels, the most for what it holds as a rule; that of the names is the least."""
    text: Callable[[RunInfo], str]
    value: Callable[[RunInfo], Any]
    bucket: Callable[[RunInfo], Bucket] | None = None
    buckets: Callable[[RunInfo], tuple[Bucket, ...]] | None = None
    is_number: bool = False
    is_shown: bool | None = True
    """None: as soon as a run has something in it."""
    is_of_now: bool = False
    """Whether its text is another one as time goes on."""
    meaning: str = ""

    def bucket_of(self, info: RunInfo) -> Bucket | None:
        if self.value(info) is None:
            return None
        if self.bucket is not None:
            return self.bucket(info)
        return self.value(info), self.text(info)

    def buckets_of(self, info: RunInfo) -> tuple[Bucket, ...]:
        """Every group that a run stands in; none where what they are made of is not known."""
        if self.buckets is not None:
            return self.buckets(info)
        bucket = self.bucket_of(info)
        return () if bucket is None else (bucket,)


def imbalance_text(info: RunInfo) -> str:
    found = None if info.figures is None else info.figures.imbalance
    if found is None:
        return ""
    if not found.is_notable:
        return phrase(BALANCED)
    return f"+{format_bytes(found.excess_bytes)}" if found.ratio is None else f"{found.ratio:.1f}×"


def _lasted_s(info: RunInfo) -> float | None:
    return lasted_s(info.spells, time.time())


def _figure(name: str) -> Callable[[RunInfo], Any]:
    return lambda info: getattr(info.figures or RunFigures(), name)


def _text_of(value: Callable[[RunInfo], Any], write: Callable[[Any], str]) -> Callable[[RunInfo], str]:
    return lambda info: "" if (found := value(info)) is None else write(found)


def _by_decade(value: Callable[[RunInfo], Any], write: Callable[[Any], str], base: int = 10) -> Any:
    """Groups as '10 – 100'."""

    def bucket(info: RunInfo) -> Bucket:
        found = value(info)
        if not math.isfinite(found) or found <= 0:
            return -math.inf, write(found)
        power = math.floor(math.log(found, base) + 1e-9)
        return power, f"{write(base**power)} – {write(base ** (power + 1))}"

    return bucket


def _by_limits(value: Callable[[RunInfo], Any], *limits: tuple[float, str]) -> Any:
    """The first group whose limit is above the value."""
    return lambda info: next((limit, label) for limit, label in limits if value(info) < limit)


def _day(info: RunInfo) -> Bucket:
    """Today, yesterday, the last seven days, then months; the newest first."""
    then, now = time.localtime(info.started), time.localtime()
    days = (time.mktime((*now[:3], 0, 0, 0, 0, 0, -1)) - (info.started or 0.0)) / _DAY_S
    for limit, label in _DAYS:
        if days <= limit:
            return limit, label
    month = phrase("{month} {year}", month=phrase(_MONTHS[then.tm_mon - 1]), year=then.tm_year)
    return 10_000_000 - (then.tm_year * 12 + then.tm_mon), month


def _number(
    key: str, title: str, width: int, name: str, write: Callable[[Any], str], meaning: str, **more: Any
) -> RunColumn:
    value = _figure(name)
    more.setdefault("bucket", _by_decade(value, write))
    text = more.pop("text", _text_of(value, write))
    return RunColumn(key, title, width, text, value, is_number=True, meaning=meaning, **more)


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _imbalance_value(info: RunInfo) -> float | None:
    found = None if info.figures is None else info.figures.imbalance
    if found is None:
        return None
    return found.ratio if found.ratio is not None else math.inf if found.excess_bytes else 1.0


def _imbalance_group(info: RunInfo) -> Bucket:
    value = _imbalance_value(info) or 1.0
    return next((limit, label) for limit, label in _RATIOS if value <= limit)


_SHARES = ((0.25, "0 – 25 %"), (0.5, "25 – 50 %"), (0.75, "50 – 75 %"), (1.0, "75 – 100 %"))
_RATIOS = (
    (1.1, phrase(BALANCED)),
    (1.5, "1.1× – 1.5×"),
    (2.0, "1.5× – 2×"),
    (4.0, "2× – 4×"),
    (math.inf, phrase("over 4×")),
)
_TIMES = (
    (60, phrase("under a minute")),
    (600, phrase("1 – 10 minutes")),
    (3600, phrase("10 – 60 minutes")),
    (21_600, phrase("1 – 6 hours")),
    (_DAY_S, phrase("6 – 24 hours")),
    (math.inf, phrase("over a day")),
)
_DAYS = ((0, phrase("Today")), (1, phrase("Yesterday")), (6, phrase("The last seven days")))
_STATES = ("running", "completed", "stopped", "failed", "lost")


def state_text(info: RunInfo) -> str:
    """The outcome, in a word that its column has room for."""
    return phrase("events lost") if info.state == EVENTS_LOST else outcome_text(info.state)


def _state_order(info: RunInfo) -> int:
    return _STATES.index(info.outcome) if info.outcome in _STATES else len(_STATES)


def _or_none(text: Callable[[RunInfo], str]) -> Callable[[RunInfo], Any]:
    return lambda info: text(info).casefold() or None


def _tags(info: RunInfo) -> str:
    return ", ".join(info.labels.tags)


def _note(info: RunInfo) -> str:
    return " ".join(info.labels.note.split())


def _devices(info: RunInfo) -> Any:
    return None if info.num_devices is None else (info.device_kind, info.num_devices)


_OF_LOSS = marked("Training loss of the last step; of a race whether losses agree")

COLUMNS: tuple[RunColumn, ...] = (
    RunColumn(
        "name",
        marked("Name"),
        104,
        title_text,
        lambda info: info.title.casefold(),
        bucket=lambda info: (info.title[:1].casefold(), info.title[:1].upper()),
    ),
    RunColumn(
        "state",
        marked("State"),
        104,
        state_text,
        _state_order,
    ),
    RunColumn("strategy", marked("Strategy"), 100, strategy_text, _or_none(strategy_text)),
    RunColumn("devices", marked("Devices"), 70, devices_text, _devices),
    RunColumn(
        "step",
        marked("Step"),
        104,
        steps_text,
        lambda info: info.step or (0 if info.steps else None),
        bucket=lambda info: (
            (math.inf, phrase("all steps done"))
            if (step_share(info) or 0) >= 1
            else _by_limits(step_share, *_SHARES)(info)
            if info.steps
            else (-1, phrase("no end planned"))
        ),
        is_number=True,
        meaning=marked("The last step that is done, of those that were planned; of a race its entries"),
    ),
    _number("loss", marked("Last loss"), 72, "loss", format_loss, _OF_LOSS, text=loss_text),
    _number(
        "held_out", marked("Held-out"), 70, "held_out", format_loss, marked("Loss of the latest evaluation")
    ),
    _number(
        "peak",
        marked("Peak"),
        78,
        "peak_bytes",
        format_bytes,
        marked("Most memory that a device held in a step, of the fullest device"),
        bucket=_by_decade(_figure("peak_bytes"), lambda size: format_bytes(size, 0), 2),
    ),
    RunColumn(
        "imbalance",
        marked("Imbalance"),
        82,
        imbalance_text,
        _imbalance_value,
        bucket=_imbalance_group,
        is_number=True,
        meaning=marked("The fullest device beside the median of the others"),
    ),
    _number(
        "samples_per_s",
        marked("Samples/s"),
        80,
        "samples_per_s",
        format_rate,
        marked("Of all devices, after the warm-up"),
    ),
    _number(
        "bubble",
        marked("Bubble"),
        68,
        "bubble",
        _percent,
        marked("Share of a step in which the stages of a pipeline wait"),
        bucket=_by_limits(_figure("bubble"), *_SHARES[:3], (math.inf, "75 – 100 %")),
        is_shown=False,
    ),
    RunColumn(
        "began",
        marked("Began"),
        108,
        _text_of(lambda info: info.started, ago),
        lambda info: info.started,
        bucket=_day,
        is_number=True,
        is_of_now=True,
    ),
    RunColumn(
        "lasted",
        marked("Lasted"),
        78,
        _text_of(_lasted_s, format_duration),
        _lasted_s,
        bucket=_by_limits(_lasted_s, *_TIMES),
        is_number=True,
        is_of_now=True,
    ),
    RunColumn(
        "tags",
        marked("Tags"),
        100,
        _tags,
        _or_none(_tags),
        is_shown=None,
        buckets=lambda info: tuple((tag.casefold(), tag) for tag in info.labels.tags),
    ),
    RunColumn("note", marked("Note"), 160, _note, _or_none(_note), is_shown=False),
    RunColumn(
        "folder", marked("Folder"), 240, lambda info: info.name, lambda info: info.name, is_shown=False
    ),
)
BY_KEY = {column.key: column for column in COLUMNS}
PLACES = {column.key: at for at, column in enumerate(COLUMNS)}
OF_NOW = [at for at, column in enumerate(COLUMNS) if column.is_of_now]
NAME = PLACES["name"]
