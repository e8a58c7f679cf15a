"""Starts the desktop app: parses the arguments, checks whether Qt can start, and runs the app.

The empty window is painted first, without torch, numpy or pyqtgraph; then composition.py adds the views.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rankdeck import __version__, debug_log
from rankdeck_app.shell.preflight import find_startup_problem

EXIT_UNSUPPORTED = 3


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="rankdeck-app",
        description="Train on several GPUs and see what each strategy costs per device.",
    )
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="run folder to open")
    parser.add_argument(
        "--runs", type=Path, metavar="DIR", help="folder for runs (default: <workspace>/runs)"
    )
    parser.add_argument(
        "--workspace",
        type=Path,
        metavar="DIR",
        help="workspace folder (default: the last one, or ~/Rankdeck)",
    )
    parser.add_argument("--version", action="version", version=f"rankdeck-app {__version__}")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the app until it is closed and return the exit code, which is 3 if the app cannot be shown on this
    machine."""
    args = parse_args(argv)
    debug_log.enable()
    obstacle = find_startup_problem()
    if obstacle is not None:
        print(obstacle, file=sys.stderr)
        return EXIT_UNSUPPORTED
    from rankdeck_app.application import run_app

    return run_app(args.runs, args.workspace, args.run)


if __name__ == "__main__":
    raise SystemExit(main())
