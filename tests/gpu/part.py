"""What a part tells, line by line on stdout and whole in a file: figures, misses, and what was left out.

The file is written again after every line, so that a part that is ended loses nothing. Standard library only.
Read page.py next.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DRY_RUN = "dry run"


@dataclass
class Part:
    """A part that is being measured, or was: `cannot` says why it was not. `rows` are below `header`;
    `figures` are sentences. `misses` are figures beyond their bar, `failures` what could not be measured.
    """

    name: str
    dry_run: bool
    budget_s: float
    facts: dict[str, Any] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    cannot: str | None = None
    took_s: float = 0.0
    at: str = ""
    folder: Path = field(default=Path(), repr=False)
    begun_s: float = field(default_factory=time.monotonic, repr=False)

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def is_sound(self) -> bool:
        """Whether all of it was measured; on a GPU also within its bars."""
        return self.cannot is None and not self.failures and (self.dry_run or not self.misses)

    @property
    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.begun_s)

    def row(self, *cells: str) -> None:
        self.rows.append(list(cells))
        self._report("  ".join(cells))

    def figure(self, sentence: str) -> None:
        self.figures.append(sentence)
        self._report(sentence)

    def miss(self, sentence: str) -> None:
        self.misses.append(sentence)
        self._report(f"MISS {sentence}")

    def fail(self, sentence: str) -> None:
        self.failures.append(sentence)
        self._report(f"FAILED {sentence}")

    def leave_out(self, sentence: str) -> None:
        self.left_out.append(sentence)
        self._report(f"left out: {sentence}")

    def refuse(self, reason: str) -> None:
        self.cannot = reason
        self._report(f"cannot be measured: {reason}")

    def _report(self, text: str) -> None:
        print_lines(f"{self.name}: {text}", dry_run=self.dry_run)
        self.save()

    def save(self) -> None:
        self.took_s = time.monotonic() - self.begun_s
        fields = dataclasses.asdict(self)
        del fields["folder"], fields["begun_s"]
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(fields, indent=1) + "\n")
        new.replace(self.file)


def read(file: Path) -> Part:
    return Part(**json.loads(file.read_text()), folder=file.parent)


def print_lines(text: str, *, dry_run: bool) -> None:
    """Lines for people; a dry run says on each of them that it is one."""
    for line in text.splitlines():
        print(f"{DRY_RUN}: {line}" if dry_run else line, flush=True)
