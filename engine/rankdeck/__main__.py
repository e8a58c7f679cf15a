"""Entry point of `rankdeck` and `python -m rankdeck`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command-line program and exit with its exit code."""
    # Before any other import: the first file that it opens would get the number of a closed stream.
    _open_missing_streams()
    try:
        from rankdeck.cli.app import run
    except KeyboardInterrupt:
        sys.exit(130)  # Ctrl-C during the import
    sys.exit(run(sys.argv[1:]))


def _open_missing_streams() -> None:
    """Open /dev/null for a closed stdin, stdout or stderr, so that no other file gets its file descriptor."""
    for handle, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(handle)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `handle`
            setattr(sys, name, open(null, "r" if handle == 0 else "w", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
