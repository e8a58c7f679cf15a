"""The GPUs of other hosts, as `rankdeck devices` tells them there."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rankdeck.base.errors import MachineError, Problem
from rankdeck.base.parsing import json_of
from rankdeck.base.phrases import phrase
from rankdeck.remote.hosts import Hosts
from rankdeck.telemetry.listing import GpuStatus

_WITHIN_S = 30.0


class _Refused(msgspec.Struct):
    problems: list[Problem] = []


def gpus_of(names: Sequence[str]) -> dict[str, list[GpuStatus] | MachineError]:
    """Of each host its GPUs, or why they cannot be told.

    Raises: ConfigError, MachineError: no host can be called so, or one cannot be reached.
    """
    with Hosts(names, lambda host, words: None) as hosts:
        hosts.connect()
        hosts.check()
        asked = [host.begin(["devices", "--json"]) for host in hosts.all]
        hosts.poll_until(lambda: all(ran.code is not None or ran.host.error for ran in asked), _WITHIN_S)
        hosts.check()
        return {ran.host.name: _told(ran.host.name, ran.code, bytes(ran.out)) for ran in asked}


def _told(host: str, code: int | None, out: bytes) -> list[GpuStatus] | MachineError:
    try:
        told = json_of(out)
        if code == 0:
            return msgspec.convert(told, list[GpuStatus])
        problem = msgspec.convert(told, _Refused).problems[0]
    except (ValueError, IndexError, msgspec.ValidationError):
        why = phrase("it did not tell its devices")
        return MachineError(phrase("{host}: {reason}", host=host, reason=why), code="no-devices")
    words = phrase("{host}: {reason}", host=host, reason=problem.message)
    return MachineError(words, code=problem.code, advice=problem.advice)
