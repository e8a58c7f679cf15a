"""Formats times in a run as short texts: time since the start, time relative to now, age of readings."""

from __future__ import annotations

import math

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_clock, format_duration
from rankdeck_app.language import tr

_AGES = (
    (86400, tr_noop("{count} d ago")),
    (3600, tr_noop("{count} h ago")),
    (60, tr_noop("{count} min ago")),
)


def ago_label(seconds: float) -> str:
    """Format a time relative to now, such as '-40 s' or '-5 min'; return 'now' for 0."""
    if abs(seconds) < 1e-6:
        return tr("now")
    for min_s, unit in ((7200, "h"), (120, "min")):
        if abs(seconds) >= min_s:
            return f"{seconds / (3600 if unit == 'h' else 60):g} {unit}"
    return f"{seconds:g} s"


def elapsed_label(seconds: float, spacing: float) -> str:
    """Return the label of a tick on an axis whose ticks are `spacing` seconds apart: '0.25 s', '0:05',
    '-0:05'."""
    if spacing < 1:
        return f"{seconds:.{max(0, -math.floor(math.log10(spacing) + 1e-9))}f} s"
    # Rounded first, so that there is no "-0:00".
    sign = "-" if round(seconds) < 0 else ""
    return f"{sign}{format_clock(abs(seconds))}"


def time_label(seconds: float) -> str:
    """Return a time as text, such as '0.3 s', '0:42' or '-3:20'."""
    sign = "-" if round(seconds, 1) < 0 else ""
    return f"{sign}{format_duration(abs(seconds))}"


def age_text(seconds: float) -> str:
    """Format an age, such as '2 s ago' or '5 min ago', in whole units, so that it is readable while it
    changes."""
    if seconds < 1:
        return tr("just now")
    for least_s, template in _AGES:
        if seconds >= least_s:
            return tr(template, count=int(seconds // least_s))
    return tr("{count} s ago", count=int(seconds))


def duration_text(seconds: float) -> str:
    """Format a duration, such as '12 s' or '1:05'."""
    return format_duration(seconds) if seconds >= 60 else f"{seconds:.0f} s"
