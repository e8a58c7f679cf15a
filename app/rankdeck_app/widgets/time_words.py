"""Moments of a run in few words: since its start, before now, and how old what is shown is."""

from __future__ import annotations

import math


def ago_label(seconds: float) -> str:
    """'-40 s', '-5 min', 'now'."""
    if abs(seconds) < 1e-6:
        return "now"
    for least, unit in ((7200, "h"), (120, "min")):
        if abs(seconds) >= least:
            return f"{seconds / (3600 if unit == 'h' else 60):g} {unit}"
    return f"{seconds:g} s"


def elapsed_label(seconds: float, spacing: float = 1.0) -> str:
    if spacing < 1:
        return f"{seconds:.{max(0, -math.floor(math.log10(spacing) + 1e-9))}f} s"
    total = round(abs(seconds))
    hours, rest = divmod(total, 3600)
    minutes, secs = divmod(rest, 60)
    text = f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
    return f"-{text}" if seconds < 0 and total else text


def age_words(seconds: float) -> str:
    """'2 s ago', '5 min ago'; in whole units, so that it can be read while it changes."""
    if seconds < 1:
        return "just now"
    for least, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= least:
            return f"{int(seconds // least)} {unit} ago"
    return f"{int(seconds)} s ago"
