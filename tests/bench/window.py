"""The window against the clock: what its first paint costs, and how long it cannot be spoken to after each
thing that a person does while nothing else answers: each call that asks the disk waits 2 s (slowdisk.c), the
planner predicts, and every other process that the app starts is stopped.

    python -m tests.bench.window [--starts 5] [--delay-ms 2000]

An answer is measured between two beats of a timer of 5 ms, in an app of its own, offscreen.
Goals: the first paint within 350 ms of a core; a click answers within 50 ms.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median

from tests.helpers.first_paint import first_paint
from tests.helpers.slow_disk import actions_on_slow_disk

GOAL_MS = 50
_SHOWN = 8


def paint(num_starts: int) -> str:
    times_ms = [first_paint()[0]["cpu_s"] * 1e3 for _ in range(num_starts)]
    range_text = f"{min(times_ms):.0f} to {max(times_ms):.0f}"
    return f"first paint: {median(times_ms):.0f} ms of a core ({range_text}; goal 350), {num_starts} starts"


def answers(folder: Path, delay_ms: int) -> str:
    acts = actions_on_slow_disk(folder, delay_ms, is_busy=True)
    acts.sort(key=lambda act: -float(act["longest_ms"]))
    late = sum(act["longest_ms"] > GOAL_MS for act in acts)
    waited = sum(bool(act["asked"]) for act in acts)
    middle_ms = median(act["longest_ms"] for act in acts)
    summary = (
        f"answers: {len(acts)} acts, each call of the disk {delay_ms} ms: median {middle_ms:.0f} ms, "
        f"{late} over {GOAL_MS} ms (goal 0), {waited} waited for the disk, "
        f"load {os.getloadavg()[0]:.1f}; the slowest:"
    )
    return "\n".join([summary, *(f"  {act['longest_ms']:5.0f} ms  {act['act']}" for act in acts[:_SHOWN])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--delay-ms", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RANKDECK_HOME"] = folder
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
        print(paint(args.starts), flush=True)
        print(answers(Path(folder), args.delay_ms), flush=True)


if __name__ == "__main__":
    main()
