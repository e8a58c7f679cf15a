"""`rankdeck devices`: the GPUs of this machine once, or as they change.

Followed as JSON it writes the lines of telemetry/readings.py until its reader goes away: that is what the app
reads. The readings come from a sampler in a process of its own, which may crash, hang or find no driver; what
happens to it is told in a line like any other.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.cli.options import AsJson

if TYPE_CHECKING:
    from rankdeck.cli.device_table import LiveDevices
    from rankdeck.telemetry.readings import SamplerLine
    from rankdeck.telemetry.registry import DeviceRegistry
    from rankdeck.telemetry.sampler_process import SamplerProcess

LOOK_S = 0.25
SILENT_S = 1.5
"""After this long without a line, the stream says itself that everything is stale."""
REDRAW_S = 0.2
SIMULATED = "simulated devices"


def devices(
    follow: Annotated[bool, typer.Option("--follow", help="Go on until interrupted.")] = False,
    as_json: AsJson = False,
) -> int:
    """List the GPUs of this machine: memory, load and who is on them."""
    if follow:
        return _follow_json() if as_json else _follow_table()
    return _list(as_json=as_json)


def _list(*, as_json: bool) -> int:
    from rankdeck.cli import console
    from rankdeck.cli.device_table import devices_table, tell_notice
    from rankdeck.telemetry.listing import ask_once

    listing = ask_once()
    if as_json:
        console.as_json([gpu.as_json() for gpu in listing.gpus])
        return 0
    for notice in listing.notices:
        tell_notice(notice)
    if listing.simulated:
        console.err().print(SIMULATED, style="yellow")
    if listing.gpus:
        console.out().print(devices_table(listing.gpus))
    else:
        console.err().print("NVIDIA's driver knows no GPU. Rehearse on virtual devices: --devices cpu:2")
    return 0


def _follow_json() -> int:
    from rankdeck.telemetry.readings import encode
    from rankdeck.telemetry.registry import DeviceRegistry
    from rankdeck.telemetry.sampler_process import SamplerProcess

    sampler, registry, reader = SamplerProcess(piped=True), DeviceRegistry(), os.getppid()
    heard_s = told_s = time.monotonic()

    def put(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    try:
        while sampler.exit_code is None:
            found = sampler.wait_for_lines(LOOK_S)
            now_s = time.monotonic()
            if found:
                put(b"".join(data for data, _ in found))
                heard_s = told_s = now_s
                for _, line in found:
                    if line is not None:
                        registry.feed(line, now_s)
            elif now_s - told_s > SILENT_S:
                put(b"".join(encode(line) for line in _silence(registry, heard_s, told_s, now_s)))
                told_s = now_s
            for notice in sampler.look():
                put(encode(notice))
            if os.getppid() != reader:
                break  # whoever asked for this is gone, and its pipe is held by somebody else
    finally:
        sampler.stop()
    return sampler.exit_code or 0


def _silence(registry: DeviceRegistry, heard_s: float, told_s: float, now_s: float) -> list[SamplerLine]:
    """What the stream says while its sampler says nothing: once that it is silent, and all that is stale."""
    from rankdeck.telemetry.readings import METRICS, DeviceReadings, NoticeLine, SampleLine

    lines: list[SamplerLine] = []
    if told_s == heard_s and registry.listed is not None:
        words = "The driver does not answer at the moment: what is shown is old."
        lines.append(NoticeLine(t=time.time(), code="silent", message=words))
    rows = []
    for device in registry.devices:
        readings = {name: registry.reading(device.uuid, name, now_s) for name in METRICS}
        stale = {name: reading for name, reading in readings.items() if reading.state == "stale"}
        if stale:
            rows.append(DeviceReadings(device.uuid, stale))
    return [*lines, SampleLine(t=time.time(), devices=rows)] if rows else lines


def _follow_table() -> int:
    from rankdeck.base.errors import MachineError
    from rankdeck.cli.device_table import LiveDevices
    from rankdeck.telemetry.registry import DeviceRegistry
    from rankdeck.telemetry.sampler_process import SamplerProcess

    sampler, registry = SamplerProcess(piped=True), DeviceRegistry()
    view = LiveDevices(registry)
    try:
        with view:
            _feed_until_over(sampler, registry, view)
    finally:
        sampler.stop()
    if sampler.exit_code and registry.listed is None and registry.notices:
        last = registry.notices[-1]
        raise MachineError(last.message, code=last.code, advice=last.advice)
    return sampler.exit_code or 0


def _feed_until_over(sampler: SamplerProcess, registry: DeviceRegistry, view: LiveDevices) -> None:
    drawn_s = 0.0
    while sampler.exit_code is None:
        lines = [line for _, line in sampler.wait_for_lines(REDRAW_S) if line is not None]
        for line in [*lines, *sampler.look()]:
            registry.feed(line, time.monotonic())
            view.tell(line)
        if time.monotonic() - drawn_s >= REDRAW_S:
            view.draw(time.monotonic())
            drawn_s = time.monotonic()
