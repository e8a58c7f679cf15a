"""A run of another host that is written while somebody copies it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from rankdeck.run_dir import RunDir, events_from_end
from tests.helpers.written_run import WrittenRun


class RunWriter:
    """A run that a thread writes to, a thousand events a second."""

    def __init__(self, runs: Path) -> None:
        self.run = WrittenRun(runs)
        self.run.start()
        self._over = threading.Event()
        self.num_steps = 0
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._over.wait(0.01):
            for _ in range(10):
                self.num_steps += 1
                self.run.write_steps(0, self.num_steps, [1.0])

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self.run.end()


def written_steps(run: RunDir) -> list[int]:
    """As they stand in the file, whole lines."""
    file = run.events_folder / "rank-0.0.jsonl"
    data = file.read_bytes() if file.exists() else b""
    return [json.loads(line)["first"] for line in data.split(b"\n")[:-1]]


def measure_lags_s(run: RunDir, seconds: float) -> list[float]:
    """How old the newest event of a copy is, again and again."""
    file, lags_s = run.events_folder / "rank-0.0.jsonl", list[float]()
    until = time.time() + seconds
    while time.time() < until:
        newest = next((event for event in events_from_end(file)), None) if file.exists() else None
        if newest is not None:
            lags_s.append(time.time() - newest.t)
        time.sleep(0.02)
    return lags_s
