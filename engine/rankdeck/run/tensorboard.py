"""ScalarsOfStep as TensorBoard reads them: a file of records, each an Event of tensorflow's event.proto.

    record = length (uint64) | crc of length | data | crc of data
    Event  = wall_time (1, double) | step (2, int64) | file_version (3, string) | summary (5)
    summary = values (1): tag (1, string), simple_value (2, float)

Source: TensorFlow's record format (tensorflow/core/lib/io/record_writer.h); checksums are CRC-32C (RFC 3720,
appendix B.4), masked. Nothing of TensorBoard is needed to write it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rankdeck.run.run_state import RunState

_CASTAGNOLI = 0x82F63B78
_MASK = 0xA282EAD8
_MAX_FLOAT = 3.4e38


class ScalarsOfStep(NamedTuple):
    """Values by tag at one step, logged at `t` (Unix seconds)."""

    t: float
    step: int
    values: Mapping[str, float]


def records(began: float, told: Iterable[ScalarsOfStep]) -> Iterator[bytes]:
    """The file, record by record."""
    yield _record(_encode_double(1, began) + _encode_bytes(3, b"brain.Event:2"))
    for scalars in told:
        summary = b"".join(
            _encode_bytes(1, _encode_bytes(1, tag.encode("utf-8", "replace")) + _encode_float(2, value))
            for tag, value in scalars.values.items()
        )
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
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def _encode_double(number: int, value: float) -> bytes:
    return _encode_key(number, 1) + struct.pack("<d", value)


def _encode_float(number: int, value: float) -> bytes:
    return _encode_key(number, 5) + struct.pack("<f", max(-_MAX_FLOAT, min(_MAX_FLOAT, value)))


def _encode_bytes(number: int, value: bytes) -> bytes:
    return _encode_key(number, 2) + _encode_varint(len(value)) + value


# The curves of a run as scalars for other programs: what it logged itself under its own names, and what was
# seen of it.
#
# What is seen of a person's own script has names of its own ("rankdeck/loss"), so that it never stands
# among what the script calls so.

_TAG_PREFIX = "rankdeck/"
_MAX_TIME = 1e12


def read_scalars(fold: RunState) -> Iterator[ScalarsOfStep]:
    """Step by step what is known of each, then the evaluations, then name by name what the script logged."""
    prefix = _TAG_PREFIX if fold.script.is_observed else ""
    zero = fold.first_started.started if fold.first_started is not None else 0.0
    for row in fold.rows():
        values = {"loss": row.loss, "lr": row.lr, "grad_norm": row.grad_norm}
        if row.step_s > 0:
            values |= {"steps_per_s": 1 / row.step_s, "samples_per_s": row.samples / row.step_s}
            values["wait_share"] = row.wait_s / row.step_s
        known = {prefix + name: value for name, value in values.items() if math.isfinite(value)}
        if known:
            yield ScalarsOfStep(_clamp_time(row.ended, zero), row.step, known)
    for one in fold.attempts.values():
        for evaluation in one.evaluations:
            told = {"held_out/loss": evaluation.loss, "held_out/accuracy": evaluation.accuracy}
            known = {name: value for name, value in told.items() if value is not None}
            yield ScalarsOfStep(evaluation.t, evaluation.step, known)
    for name, metric in fold.metrics.items():
        for step, t, value in zip(*(column.tolist() for column in metric.points()), strict=True):
            yield ScalarsOfStep(_clamp_time(t, zero), int(step), {name: value})


def _clamp_time(t: float, zero: float) -> float:
    """When something was logged, as far as that makes sense."""
    return t if abs(t) < _MAX_TIME else zero
