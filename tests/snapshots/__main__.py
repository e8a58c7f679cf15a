"""python -m tests.snapshots: what differs from what is kept; with --write, what is said now is kept."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RANKDECK_HOME"] = str(Path(folder, "home"))
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
        from tests.snapshots import kept

        now = dict(_documents(Path(folder)))
        if "--write" in sys.argv[1:]:
            print(f"{kept.write(now.items())} documents are kept")
            return 0
        then = kept.read()
        differences = [
            kept.difference(name, then.get(name, ""), now.get(name, "")) for name in sorted({*then, *now})
        ]
    print("\n".join(filter(None, differences)) or f"{len(now)} documents are as they were")
    return int(any(differences))


def _documents(folder: Path) -> Iterator[tuple[str, str]]:
    from rankdeck_app.application import make_app
    from tests.snapshots.drawn import all_drawn
    from tests.snapshots.said import Recorded, in_utc, iter_documents

    with in_utc():
        recorded = Recorded(folder)
        yield from iter_documents(recorded)
        make_app([])
        yield from all_drawn(recorded)


if __name__ == "__main__":
    sys.exit(main())
