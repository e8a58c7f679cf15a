"""Sizes, durations and counts as people write and read them."""

from __future__ import annotations

import math

import pytest

from rankdeck.base.units import (
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_loss,
    format_rate,
    parse_bytes,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("24GiB", 24 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("7", 7),
        (7, 7),
        ("2kib", 2048),
    ],
)
def test_sizes_are_parsed_in_binary_and_decimal_units(text: str | int, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "lots", "5 parsecs", "-1GiB", "1,5GiB"])
def test_an_invalid_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="24GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**20 * 285.6, "285.6 MiB"), (2**60, "1048576.0 TiB")],
)
def test_bytes_are_printed_in_binary_units(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.31, "0.3 s"),
        (9.94, "9.9 s"),
        (9.96, "0:10"),
        (41, "0:41"),
        (401, "6:41"),
        (4402, "1:13:22"),
        (2 * 86400 + 11400, "2 d 03:10"),
    ],
)
def test_long_durations_are_formatted_as_a_clock(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_duration_keeps_its_tenths_up_to_the_given_limit() -> None:
    durations = [format_duration(seconds, clock_from_s=100) for seconds in (41.26, 99.94, 99.96)]
    assert durations == ["41.3 s", "99.9 s", "1:40"]


def test_a_clock_has_whole_seconds_only() -> None:
    assert [format_clock(seconds) for seconds in (-1, 0.3, 5, 41)] == ["0:00", "0:00", "0:05", "0:41"]


def test_counts_are_grouped() -> None:
    assert format_count(12000) == "12\u2009000"


@pytest.mark.parametrize(
    "rate, text",
    [(0.01234, "0.0123"), (1.0, "1"), (9.96, "10.0"), (45.67, "45.7"), (99.6, "100"), (12300, "12\u2009300")],
)
def test_a_rate_has_three_digits_and_no_exponent(rate: float, text: str) -> None:
    assert format_rate(rate) == text


def test_a_non_finite_loss_is_formatted_as_text() -> None:
    assert [format_loss(loss) for loss in (0.01234, math.nan, -math.inf)] == ["0.0123", *2 * ["not finite"]]
