"""Lists the presets: ready-made configurations, each with a comment about what one learns from it.

A preset is a TOML file with a leading comment. The files are in `rankdeck/_presets` in the wheel, and in
`presets` in a checkout. Listing them runs no code and reads no data.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Preset:
    """An entry in the list of presets. `text` is the file's leading comment; `devices` and `strategy` are as
    written in the file."""

    name: str
    title: str
    text: str
    path: Path
    strategy: str
    devices: str
    needs_gpu: bool

    @property
    def about(self) -> str:
        """First paragraph of the comment."""
        return self.text.split("\n\n")[0]

    @property
    def lesson(self) -> str:
        """Lesson of the preset: the first sentence of the comment's second paragraph, else the title."""
        paragraphs = self.text.split("\n\n")
        return paragraphs[1].split(". ")[0].rstrip(".") if len(paragraphs) > 1 else self.title


def presets_folder() -> Path:
    """Return the wheel's presets folder if there is one, else the checkout's."""
    packed = _PACKAGE / "_presets"
    return packed if packed.is_dir() else _PACKAGE.parents[1] / "presets"


def list_presets() -> list[Preset]:
    """Return all presets, sorted by name.

    Unreadable files are skipped, so that one bad file does not break the list.
    """
    cards = []
    for path in sorted(presets_folder().glob("*.toml"), key=lambda path: path.stem):
        try:
            cards.append(_read_preset(path))
        except (OSError, ValueError):
            continue
    return cards


def find_preset(name: str) -> Path | None:
    """Return a preset's file; None if no preset has this name."""
    # Names are compared and not joined to the folder: typed text may contain slashes or be too long for a
    # path.
    return next((path for path in presets_folder().glob("*.toml") if path.stem == name), None)


def _read_preset(path: Path) -> Preset:
    source = path.read_text(encoding="utf-8")
    tables = tomllib.loads(source)
    devices = _use(tables, "devices", "auto")
    return Preset(
        name=path.stem,
        title=str(tables.get("name", path.stem)),
        text=_leading_comment(source),
        path=path,
        strategy=_use(tables, "strategy", "single"),
        devices=devices,
        needs_gpu=devices.startswith("gpu"),
    )


def _use(tables: Mapping[str, object], section: str, default: str) -> str:
    table = tables.get(section, {})
    use = table.get("use", default) if isinstance(table, dict) else None
    if not isinstance(use, str):
        raise ValueError(f"{section}.use is not a string")
    return use


def _leading_comment(source: str) -> str:
    """Return the file's leading comment lines, joined; an empty comment line separates paragraphs."""
    lines = []
    for line in source.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    paragraphs = "\n".join(lines).strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)
