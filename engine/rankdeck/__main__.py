"""`rankdeck` and `python -m rankdeck`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from rankdeck.cli.app import run
    except KeyboardInterrupt:
        sys.exit(130)  # Ctrl-C before there is anything to stop
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
