"""What the Devices tab costs: CPU time of a line of the sampler, and of drawing each of its parts.

    python -m tests.bench.devices [--gpus 16] [--hours 2] [--draws 100]

In a window (offscreen where there is no display), on lines of a sampler that the bench writes itself and a
history of some hours. A frame draws one part. Goals: <= 16 ms a frame, <= 30 % of a core at five draws of
every part and ten lines a second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PySide6.QtCore import QObject

from rankdeck.telemetry.readings import METRICS, decode, encode
from rankdeck_app.application import make_app
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.theme import Theme
from rankdeck_app.views.devices.page import DevicesPage
from tests.helpers.device_lines import GIB, USUAL, feed_machine, samples

DRAWS_PER_S, LINES_PER_S = 5, 10


def fill(gpus: Gpus, hours: float) -> None:
    """A history as if the app had been up for so long."""
    assert gpus.history is not None
    seconds = 3600 * hours
    gpus.started_s -= seconds
    for gpu in gpus.devices:
        for metric in METRICS.values():
            x = np.arange(1.0, seconds, 1 / metric.hz)
            scale = 17 * GIB if metric.unit == "B" else 1.0
            gpus.history.series(gpu.uuid, metric.name).append_many(x, scale * (0.6 + 0.3 * np.sin(x / 3)))


def cpu_ms(act: Callable[[], object], times: int) -> list[float]:
    times_ms = []
    for _ in range(times):
        began_s = time.process_time()
        act()
        times_ms.append(1e3 * (time.process_time() - began_s))
    return sorted(times_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--draws", type=int, default=100)
    args = parser.parse_args()
    if not os.environ.get("DISPLAY"):
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
    app, owner = make_app(), QObject()
    with tempfile.TemporaryDirectory() as folder:
        gpus = Gpus(Engine(Path(folder), owner), owner)
        feed_machine(gpus, args.gpus)
        fill(gpus, args.hours)
        line = encode(samples([gpu.uuid for gpu in gpus.devices], **dict(USUAL)))

        def take() -> None:
            devices_line = decode(line)
            assert devices_line is not None
            gpus.add_line(devices_line)

        spent_ms = cpu_ms(take, args.draws)
        print(f"a line with every metric of {args.gpus} GPUs: {spent_ms[len(spent_ms) // 2]:.2f} ms")
        per_s = LINES_PER_S * spent_ms[len(spent_ms) // 2]
        page = DevicesPage(gpus, Theme(), FrameClock(), lambda _gpu: None)
        page.resize(1100, 620)
        page.show()
        for chosen in ("", gpus.devices[0].uuid):
            page.table.select(chosen)
            of = "one device" if chosen else "all devices"
            for section in page.parts():
                spent_ms = cpu_ms(
                    lambda section=section: (take(), page.draw(section), app.processEvents()), args.draws
                )  # type: ignore[misc]
                middle, worst = spent_ms[len(spent_ms) // 2], spent_ms[int(0.99 * len(spent_ms))]
                per_s += DRAWS_PER_S * middle if not chosen else 0
                print(f"{of}, {section}: {middle:.1f} ms, p99 {worst:.1f} ms")
        print(f"a second with all devices on show: {per_s:.0f} ms of a core")
        page.close()
        gpus.close()


if __name__ == "__main__":
    main()
