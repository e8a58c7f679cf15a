"""Ready configurations: where they live and what each is for.

A preset is a TOML file whose leading comment says what one learns from it. In a wheel they lie in
`rankdeck/_presets`, in a checkout in its `presets` folder. Listing them runs no code and reads no data.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Preset:
    """One preset as a list shows it. `text` is its leading comment, `devices` and `strategy` as written."""

    name: str
    title: str
    text: str
    path: Path
    strategy: str
    devices: str
    needs_gpu: bool

    @property
    def about(self) -> str:
        """The first paragraph of the comment."""
        return self.text.split("\n\n")[0]

    @property
    def lesson(self) -> str:
        """What one learns from it: the sentence that begins with "Learn from it", without these words."""
        _, mark, rest = self.text.partition("Learn from it ")
        sentence = rest.split(". ")[0].rstrip(".") if mark else self.title
        return sentence.split("\n")[0]


def presets_folder() -> Path:
    """The folder of the presets: the wheel's, else the checkout's."""
    packed = _PACKAGE / "_presets"
    return packed if packed.is_dir() else _PACKAGE.parents[1] / "presets"


def list_presets() -> list[Preset]:
    """Every preset, by name.

    A file that cannot be read is left out: a list must not fail over one of them.
    """
    cards = []
    for path in sorted(presets_folder().glob("*.toml"), key=lambda path: path.stem):
        try:
            cards.append(_read_preset(path))
        except (OSError, ValueError):
            continue
    return cards


def find_preset(name: str) -> Path | None:
    """The file of a preset; None where there is none of this name."""
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
        raise ValueError(f"{section} is not what a configuration has")
    return use


def _leading_comment(source: str) -> str:
    """The comment lines above the first line that is none, joined; an empty comment line parts paragraphs."""
    lines = []
    for line in source.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    paragraphs = "\n".join(lines).strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)
