"""Parses and formats bytes, durations, counts, rates and losses.

Sizes are binary (KiB, MiB, GiB). Decimal units (KB, MB, GB) are accepted as input and never printed.
"""

from __future__ import annotations

import math
import re

from rankdeck.base.phrases import phrase

_BINARY = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Return the number of bytes in "24GiB", "512 MiB", "1.5GB" or a plain number.

    Raises:
        ValueError: the text is not a size; the message shows valid forms.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    factor = None if match is None else (_BINARY | _DECIMAL).get(match[2].lower())
    if match is None or factor is None:
        raise ValueError(phrase('"{text}" is not a size; write it as "24GiB", "512MiB" or "16GB"', text=text))
    return int(float(match[1]) * factor)


def format_bytes(num_bytes: float, digits: int = 1) -> str:
    """Format bytes as '38.7 GiB', '285.6 MiB' or '12 B'."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.{digits}f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def format_setting(key: str, value: object) -> str:
    """Format an option as in a configuration, without quotes: 'reshard = false', 'schedule = 1f1b'."""
    return f"{key} = {str(value).lower() if isinstance(value, bool) else value}"


def format_duration(seconds: float, clock_from_s: float = 10) -> str:
    """Format a duration as '0.3 s'; from `clock_from_s` seconds on, format it like `format_clock`."""
    # From here on the seconds would be rounded up to `clock_from_s`.
    if seconds >= clock_from_s - 0.05:
        return format_clock(seconds)
    return f"{max(0.0, seconds):.1f} s"


def format_clock(seconds: float) -> str:
    """Format a duration as '0:41', '6:41', '1:13:22' or '2 d 03:10'."""
    total = max(0, round(seconds))
    days, rest = divmod(total, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days} d {hours:02d}:{minutes:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{secs:02d}"
    return f"{minutes}:{secs:02d}"


def format_count(count: float) -> str:
    """Format a count in groups of three digits, separated by a thin space, as in the app's stat strip."""
    return f"{round(count):,}".replace(",", "\u2009")


def format_rate(per_s: float) -> str:
    """Format a rate with three significant digits, or as a whole number if it is at least 100."""
    # At these limits rounding would add a digit: 99.96 would become 100.0.
    return format_count(per_s) if per_s >= 99.5 else f"{per_s:.1f}" if per_s >= 9.95 else f"{per_s:.3g}"


def format_loss(loss: float) -> str:
    """Format a loss as '0.0123' or 'not finite'."""
    return f"{loss:.4f}" if math.isfinite(loss) else phrase("not finite")
