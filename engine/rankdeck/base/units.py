"""Bytes, seconds, counts, rates and losses, parsed from what people type and printed as people read them.

Sizes are binary (KiB, MiB, GiB); decimal units (KB, MB, GB) are accepted when typed and never printed.
"""

from __future__ import annotations

import math
import re

from rankdeck.base.phrases import phrase

_BINARY = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Bytes of "24GiB", "512 MiB", "1.5GB" or a plain number.

    Raises:
        ValueError: the text is not a size; the message says which forms are.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    factor = None if match is None else (_BINARY | _DECIMAL).get(match[2].lower())
    if match is None or factor is None:
        raise ValueError(phrase('"{text}" is not a size; write it as "24GiB", "512MiB" or "16GB"', text=text))
    return int(float(match[1]) * factor)


def format_bytes(num_bytes: float, digits: int = 1) -> str:
    """'38.7 GiB', '285.6 MiB', '12 B'."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.{digits}f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def format_setting(key: str, value: object) -> str:
    """'reshard = false', 'schedule = 1f1b': an option as it is written in a configuration, without quotes."""
    return f"{key} = {str(value).lower() if isinstance(value, bool) else value}"


def format_duration(seconds: float, clock_from_s: float = 10) -> str:
    """'0.3 s', and longer ones as a clock shows them."""
    if seconds >= clock_from_s - 0.05:
        return format_clock(seconds)
    return f"{max(0.0, seconds):.1f} s"


def format_clock(seconds: float) -> str:
    """'0:41', '6:41', '1:13:22' and '2 d 03:10'."""
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
    """'3 999', '12 000': groups of three parted by a narrow gap, as in the stat strip."""
    return f"{round(count):,}".replace(",", "\u2009")


def format_rate(per_s: float) -> str:
    """'12\u2009300', '12.3' and '0.0123': three figures, and whole ones from 100 on."""
    return format_count(per_s) if per_s >= 99.5 else f"{per_s:.1f}" if per_s >= 9.95 else f"{per_s:.3g}"


def format_loss(loss: float) -> str:
    """'0.0123', 'not finite'."""
    return f"{loss:.4f}" if math.isfinite(loss) else phrase("not finite")
