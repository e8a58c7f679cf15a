"""Combinations in which strategy and one device compute the same."""

from __future__ import annotations

from tests.verify_breaks.rows import Case


def cases() -> list[Case]:
    return [Case("models/lm_small", "ddp x2"), Case("models/lm_small", "pipeline zbv x2")]
