"""Encode scalars for TensorBoard: a file of records, each an Event of tensorflow's event.proto.

    record = length (uint64) | crc of length | data | crc of data
    Event  = wall_time (1, double) | step (2, int64) | file_version (3, string) | summary (5)
    summary = values (1): tag (1, string), simple_value (2, float)

Source: TensorFlow's record format (tensorflow/core/lib/io/record_writer.h); checksums are CRC-32C (RFC 3720,
appendix B.4), masked. Writing needs no part of TensorBoard.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rankdeck.run.run_state import RunState

# The reflected polynomial of CRC-32C; the mask is that of TensorFlow's record format.
_CASTAGNOLI = 0x82F63B78
_MASK = 0xA282EAD8
# struct refuses to pack larger values as a float32.
_MAX_FLOAT = 3.4e38


class ScalarsOfStep(NamedTuple):
    """Values at one step, by tag; they were logged at `t` (Unix seconds)."""

    t: float
    step: int
    values: Mapping[str, float]


def records(start_s: float, step_scalars: Iterable[ScalarsOfStep]) -> Iterator[bytes]:
    """Yield the records of a TensorBoard file: a version record at time `start_s`, then `step_scalars`."""
    # The first record has to state the file version.
    yield _record(_encode_double(1, start_s) + _encode_bytes(3, b"brain.Event:2"))
    for scalars in step_scalars:
        summary = b"".join(
            _encode_bytes(1, _encode_bytes(1, tag.encode("utf-8", "replace")) + _encode_float(2, value))
            for tag, value in scalars.values.items()
        )
        # Protobuf encodes a negative int64 as its two's complement in 64 bits.
        step = _encode_key(2, 0) + _encode_varint(scalars.step & (1 << 64) - 1)
        yield _record(_encode_double(1, scalars.t) + step + _encode_bytes(5, summary))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _make_crc_table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _make_crc_table()


def _encode_key(number: int, wire_type: int) -> bytes:
    return _encode_varint(number << 3 | wire_type)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def _encode_double(number: int, value: float) -> bytes:
    return _encode_key(number, 1) + struct.pack("<d", value)


def _encode_float(number: int, value: float) -> bytes:
    return _encode_key(number, 5) + struct.pack("<f", max(-_MAX_FLOAT, min(_MAX_FLOAT, value)))


def _encode_bytes(number: int, value: bytes) -> bytes:
    return _encode_key(number, 2) + _encode_varint(len(value)) + value


# The curves of a run as scalars for other programs: values that it logged under its own names, and values
# that were observed.
#
# Observed values of a user script have a prefix ("rankdeck/loss"), so that they are not mixed with values
# that the script logs under the same name.

_TAG_PREFIX = "rankdeck/"
_MAX_TIME = 1e12


def read_scalars(state: RunState) -> Iterator[ScalarsOfStep]:
    """Yield each step's known values, then the evaluations, then the logged values by name."""
    prefix = _TAG_PREFIX if state.script.is_observed else ""
    zero = state.first_started.started if state.first_started is not None else 0.0
    for row in state.rows():
        values = {"loss": row.loss, "lr": row.lr, "grad_norm": row.grad_norm}
        if row.step_s > 0:
            values |= {"steps_per_s": 1 / row.step_s, "samples_per_s": row.samples / row.step_s}
            values["wait_share"] = row.wait_s / row.step_s
        scalars = {prefix + name: value for name, value in values.items() if math.isfinite(value)}
        if scalars:
            yield ScalarsOfStep(_clamp_time(row.ended, zero), row.step, scalars)
    for attempt in state.attempts.values():
        for evaluation in attempt.evaluations:
            results = {"held_out/loss": evaluation.loss, "held_out/accuracy": evaluation.accuracy}
            scalars = {name: value for name, value in results.items() if value is not None}
            yield ScalarsOfStep(evaluation.t, evaluation.step, scalars)
    for name, metric in state.metrics.items():
        for step, t, value in zip(*(column.tolist() for column in metric.points()), strict=True):
            yield ScalarsOfStep(_clamp_time(t, zero), int(step), {name: value})


def _clamp_time(t: float, zero: float) -> float:
    """Return `t`, the time of a value; if it is not plausible, return `zero`, the run's start."""
    return t if abs(t) < _MAX_TIME else zero
