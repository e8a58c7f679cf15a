"""What is broken: one line of the engine, and the tests that ought to see it.

The fixed list lies beside this file, pages of TOML. It was written before the tests that it asks for, and
tests/test_mutants.py holds it to the source. Others are drawn by a library (draw.py). Read run.py next.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

ENGINE = "engine/rankdeck"
DRAWN = "drawn"
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Break:
    """`old` stands in `file` (below the engine) once, or is line `line` of it; `new` takes its place.

    `of` is a strategy or a room, `name` a sentence that says what is wrong then, `tests` are files below
    tests/. `harmless` says why a break changes nothing that anybody could see.
    """

    of: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    line: int | None = None
    harmless: str | None = None

    @property
    def key(self) -> str:
        """Another break has another one; the same a few lines further down keeps its own."""
        return hashlib.sha256(json.dumps([self.file, self.old, self.new]).encode()).hexdigest()[:16]

    def applied_to(self, source: str) -> str:
        """Raises: ValueError where the source is not what it was."""
        lines = source.split("\n")
        if self.line is not None:
            if self.line > len(lines) or lines[self.line - 1] != self.old:
                raise ValueError(f"{self.name}: {self.file} has changed since it was drawn.")
            lines[self.line - 1] = self.new
            return "\n".join(lines)
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: not once in {self.file}, but {source.count(self.old)} times.")
        return source.replace(self.old, self.new)


def fixed() -> list[Break]:
    """The list beside this file."""
    pages = sorted(_HERE.glob("*.toml"))
    return [_break(row) for page in pages for row in tomllib.loads(page.read_text("utf-8")).get("break", ())]


def drawn(file: Path) -> list[Break]:
    """What draw.py left; nothing where it did not run. Which of them are harmless stands in harmless.toml."""
    if not file.is_file():
        return []
    harmless = tomllib.loads((_HERE / "harmless.toml").read_text("utf-8"))["drawn"]
    breaks = [_break(row) for row in json.loads(file.read_text("utf-8"))["breaks"]]
    return [dataclasses.replace(entry, harmless=harmless.get(entry.key)) for entry in breaks]


def _break(row: dict[str, object]) -> Break:
    names = {field.name for field in dataclasses.fields(Break)}
    assert row.keys() <= names, row.keys() - names
    return Break(**{**row, "tests": tuple(row["tests"])})  # type: ignore[arg-type]
