"""Five thousand runs against the clock: listed by the command line, opened as a table, scrolled.

    python -m tests.bench.runs [--runs 5000] [--folder FOLDER]

The runs are folders that the engine's own writer has made (some seconds); FOLDER keeps them for the next
time. Measured: `rankdeck runs`, and in a window of 1920 x 1080 (offscreen where there is no display) the time
until the table shows all, each without an index and with one; processor time of a frame while the table is
scrolled, and of sorting, searching and grouping.
Goals: the list within a few seconds cold and a second warm, the table in a second, p99 frame <= 16 ms.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers.many_runs import write_many

FRAMES = 300


def command_line(*arguments: str) -> str:
    """Wall and processor time of a command of the engine."""
    start_s, before = time.perf_counter(), os.times()
    subprocess.run(
        [sys.executable, "-m", "rankdeck", *arguments], stdout=subprocess.DEVNULL, check=True, timeout=600
    )
    after = os.times()
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    return f"{time.perf_counter() - start_s:.2f} s ({cpu_s:.2f} s of a core)"


class Table:
    """A window with the page of runs in it."""

    def __init__(self, folder: Path) -> None:
        from rankdeck_app.views.runs_page import RunsPage
        from tests.helpers.app_window import open_app

        self.app = open_app(folder, samples=True)
        page = self.app.window.editor.open("runs:")
        assert isinstance(page, RunsPage)
        self.page = page

    def close(self) -> None:
        from tests.helpers.app_window import close_app

        close_app(self.app)

    def spin(self, until: Callable[[], bool], seconds: float = 120) -> None:
        from PySide6.QtWidgets import QApplication

        end = time.perf_counter() + seconds
        while not until():
            assert time.perf_counter() < end, "it never came"
            QApplication.processEvents()
            time.sleep(0.002)

    def scroll(self, pixels: int) -> str:
        """Frames that each scroll so far and paint what comes into sight."""
        from PySide6.QtWidgets import QApplication

        bar, times_ms = self.page.table.verticalScrollBar(), []
        for frame in range(FRAMES):
            begin_s = time.thread_time()
            bar.setValue((frame * pixels) % bar.maximum())
            QApplication.processEvents()
            times_ms.append((time.thread_time() - begin_s) * 1e3)
        times_ms.sort()
        return f"median {times_ms[FRAMES // 2]:.1f} ms, p99 {times_ms[int(FRAMES * 0.99)]:.1f} ms a frame"


def _timed(act: Callable[[], object]) -> str:
    begin_s = time.thread_time()
    act()
    return f"{(time.thread_time() - begin_s) * 1e3:.0f} ms"


def in_a_window(folder: Path, count: int) -> list[str]:
    """Opens the table twice: the first time nothing is known of the runs."""
    lines = []
    for index in ("no index", "an index"):
        begin_s = time.perf_counter()
        table = Table(folder)
        runs = table.app.session.runs
        table.spin(lambda runs=runs: bool(runs.infos))
        first_s = time.perf_counter() - begin_s
        table.spin(lambda runs=runs: len(runs.infos) == count)
        rows_s = time.perf_counter() - begin_s
        table.spin(lambda runs=runs: all(info.metrics is not None for info in runs.infos))
        lines.append(
            f"table, {index}: first rows after {first_s:.2f} s, all after {rows_s:.2f} s, "
            f"all figures after {time.perf_counter() - begin_s:.2f} s"
        )
        if index == "an index":
            lines += _hands(table)
        table.close()
    return lines


def _hands(table: Table) -> list[str]:
    """What a person does with the table."""
    page = table.page
    table.app.window.resize(1920, 1080)  # not before it has been fitted to the screen
    table.spin(lambda: page.table.width() > 1500)
    return [
        f"scrolled by 3 rows: {table.scroll(84)}; by a page: {table.scroll(700)}",
        f"sorted in {_timed(lambda: page.table.sort_by('loss'))}, "
        f"searched in {_timed(lambda: page.search.setText('state:failed ddp'))} "
        f"and {_timed(page.search.clear)}, grouped in {_timed(lambda: page.table.group_by('began'))}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp())
    try:
        os.environ |= {"RANKDECK_HOME": str(folder / "home"), "RANKDECK_RUNS": str(folder / "runs")}
        if "DISPLAY" not in os.environ:
            os.environ["QT_QPA_PLATFORM"] = "offscreen"
        if not (folder / "runs").is_dir():
            write_many(folder / "runs", chosen.runs)
        count = len(list((folder / "runs").iterdir()))
        shutil.rmtree(folder / "home", ignore_errors=True)
        for index in ("no index", "an index"):
            print(f"rankdeck runs, {count} runs, {index}: {command_line('runs')}", flush=True)
        shutil.rmtree(folder / "home", ignore_errors=True)
        from rankdeck_app.application import make_app

        application = make_app([])
        print(*in_a_window(folder, count), sep="\n")
        del application
    finally:
        if chosen.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
