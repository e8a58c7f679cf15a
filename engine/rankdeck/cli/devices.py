"""`rankdeck devices`: show this machine's GPUs, once or continuously.

With --follow --json, the command writes the lines that telemetry/readings.py defines, for the app or another
parent process, until that process exits. Readings come from a sampler in a separate process, which may crash,
hang or find no driver; such failures are reported as lines.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import MachineError
from rankdeck.cli import console
from rankdeck.cli.options import AsJson

if TYPE_CHECKING:
    from rankdeck.telemetry.readings import AnySamplerLine
    from rankdeck.telemetry.registry import DeviceRegistry

LINE_TIMEOUT_S = 0.25
SILENCE_TIMEOUT_S = 1.5
"""Seconds without a line from the sampler after which --follow --json reports the readings as stale."""
SIMULATED_TEXT = "simulated devices"


def devices(
    follow: Annotated[bool, typer.Option("--follow", help="Refresh until interrupted.")] = False,
    as_json: AsJson = False,
    pcie: Annotated[
        bool, typer.Option("--pcie", help="Also show PCIe traffic (takes 40 ms per GPU).")
    ] = False,
) -> int:
    """List GPUs with their memory, load and processes."""
    if follow:
        options = ["--pcie"] if pcie else []
        return _follow_json(options) if as_json else _follow_table(options)
    return _print_devices(as_json=as_json, pcie=pcie)


def _print_devices(*, as_json: bool, pcie: bool) -> int:
    from rankdeck.cli.device_table import devices_table, print_notice, processes_table
    from rankdeck.telemetry.listing import query_gpus

    listing = query_gpus(pcie=pcie)
    if as_json:
        console.print_json([gpu.as_json() for gpu in listing.gpus])
        return 0
    for notice in listing.notices:
        print_notice(notice)
    if listing.simulated:
        console.err().print(SIMULATED_TEXT, style="yellow")
    if listing.gpus:
        out = console.out()
        out.print(devices_table(listing.gpus))
        if any(gpu.processes for gpu in listing.gpus):
            out.print()
            out.print(processes_table(listing.gpus))
    else:
        console.err().print(
            "NVIDIA's driver reports no GPUs. To rehearse on virtual devices: --devices cpu:2"
        )
    return 0


def _follow_json(options: Sequence[str]) -> int:
    from rankdeck.telemetry.readings import encode
    from rankdeck.telemetry.registry import DeviceRegistry
    from rankdeck.telemetry.sampler_process import SamplerProcess

    sampler, registry, reader = SamplerProcess(options, piped=True), DeviceRegistry(), os.getppid()
    heard_s = written_s = time.monotonic()
    try:
        # Stop when the parent process has ended, even if another process still holds the pipe open.
        while sampler.exit_code is None and os.getppid() == reader:
            lines = sampler.wait_for_lines(LINE_TIMEOUT_S)
            now_s = time.monotonic()
            if lines:
                heard_s = written_s = now_s
                for line in lines:
                    registry.feed(line, now_s)
            elif now_s - written_s > SILENCE_TIMEOUT_S:
                lines = _silence_lines(registry, heard_s, written_s, now_s)
                written_s = now_s
            sys.stdout.buffer.write(b"".join(map(encode, [*lines, *sampler.poll()])))
            sys.stdout.buffer.flush()
    finally:
        sampler.stop()
    return sampler.exit_code or 0


def _silence_lines(
    registry: DeviceRegistry, heard_s: float, written_s: float, now_s: float
) -> list[AnySamplerLine]:
    """Return the lines to write while the sampler is silent: stale readings, after a notice at
    the start of each silence.

    `heard_s` is the time of the sampler's last line, `written_s` the time at which a line was last written.
    """
    from rankdeck.telemetry.readings import METRICS, DeviceReadings, NoticeLine, SampleLine

    lines: list[AnySamplerLine] = []
    # The times are equal only until the first of these lines is written, so each silence has a single notice.
    if written_s == heard_s and registry.devices_line is not None:
        message = "NVIDIA's driver is not answering. The readings shown are stale."
        lines.append(NoticeLine(code="silent", message=message))
    rows = []
    for device in registry.devices:
        readings = {name: registry.reading(device.uuid, name, now_s) for name in METRICS}
        stale = {name: reading for name, reading in readings.items() if reading.state == "stale"}
        if stale:
            rows.append(DeviceReadings(device.uuid, stale))
    return [*lines, SampleLine(devices=rows)] if rows else lines


def _follow_table(options: Sequence[str]) -> int:
    from rankdeck.cli.device_table import REDRAW_INTERVAL_S, LiveDevices
    from rankdeck.telemetry.registry import DeviceRegistry
    from rankdeck.telemetry.sampler_process import SamplerProcess

    # --calm reads once a second, which is as often as the table is redrawn.
    sampler, registry = SamplerProcess(["--calm", *options], piped=True), DeviceRegistry()
    view = LiveDevices(registry)
    try:
        with view.open_display():
            while sampler.exit_code is None:
                for line in [*sampler.wait_for_lines(REDRAW_INTERVAL_S), *sampler.poll()]:
                    registry.feed(line, time.monotonic())
                    view.add_line(line)
                view.draw(time.monotonic())
    finally:
        sampler.stop()
    if sampler.exit_code and registry.devices_line is None and registry.notices:
        last = registry.notices[-1]
        raise MachineError(last.message, code=last.code, advice=last.advice)
    return sampler.exit_code or 0
