"""`python -m tests.published [ID...]` plans the rows of rows.toml (all of them: minutes) and prints the page,
docs/published.md, or the lines of the rows that are named.
"""

from __future__ import annotations

import sys

from tests.published.page import line, page
from tests.published.table import load, planned


def main(ids: list[str]) -> None:
    table = load()
    results = []
    for row in table.rows:
        if ids and row.id not in ids:
            continue
        results.append(planned(row, table))
        print(line(results[-1]), file=sys.stdout if ids else sys.stderr, flush=True)
    if not ids:
        print(page(results, table), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
