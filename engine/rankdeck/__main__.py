"""`rankdeck` and `python -m rankdeck`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    _open_missing_streams()
    try:
        from rankdeck.cli.app import run
    except KeyboardInterrupt:
        sys.exit(130)  # Ctrl-C before there is anything to stop
    sys.exit(run(sys.argv[1:]))


def _open_missing_streams() -> None:
    """Nothing else may come to stand in the place of stdin, stdout or stderr if somebody closed it."""
    for handle, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(handle)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            setattr(sys, name, open(null, "r" if handle == 0 else "w", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
