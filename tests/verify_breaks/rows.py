"""What is broken and under what: a line of the engine while an entry of the zoo is checked, or nothing, where
a person's own code computes otherwise on slices than on whole batches.

The rows lie beside this file, pages of TOML, written before anybody knew which of them are found. Read
worlds.py next.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.breaks import Break
from tests.verify_breaks.models import USER_MODELS
from tests.zoo.registry import Entry, all_entries
from tests.zoo.strategies import SETTINGS

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class CheckedBreak(Break):
    """A break of `file` that shows while `entry` is checked under `setting`. Without a file it is the entry
    that differs. `causes` are the classes that are right for it.

    `changes` are fields of the entry, `options` those of the strategy, `optimizer` takes the entry's place.
    """

    tests: tuple[str, ...] = ()
    entry: str = "models/lm_small"
    setting: str = "ddp x2"
    causes: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_in_engine(self) -> bool:
        return bool(self.file)

    @property
    def case(self) -> Case:
        return Case(self.entry, self.setting, self.changes, self.options)


@dataclass(frozen=True)
class Case:
    """An entry of the zoo under a setting, in a precision; `in_own`: compared in that precision alone, as
    large models are."""

    entry: str
    setting: str
    changes: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp64"
    in_own: bool = False

    @property
    def name(self) -> str:
        how = f" in {self.precision}{' alone' * self.in_own}" if self.precision != "fp64" else ""
        more = "".join(f" {key}={value}" for key, value in {**self.changes, **self.options}.items())
        return f"{self.entry} under {self.setting}{more}{how}"

    @property
    def changed(self) -> Entry:
        """The entry as it is trained here."""
        return dataclasses.replace({**all_entries(), **USER_MODELS}[self.entry], **self.changes)

    @property
    def toml(self) -> str:
        setting = SETTINGS[self.setting]
        text = self.changed.toml({**setting.table, **self.options}, setting.num_devices)
        assert '"precision" = "fp64"' in text
        return text.replace('"precision" = "fp64"', f'"precision" = "{self.precision}"')

    @property
    def num_ranks(self) -> int:
        return SETTINGS[self.setting].num_ranks

    @property
    def num_devices(self) -> int:
        return SETTINGS[self.setting].num_devices


def load_breaks() -> list[CheckedBreak]:
    """All pages beside this file."""
    pages = sorted(_FOLDER.glob("*.toml"))
    return [_parse_break(row) for page in pages for row in tomllib.loads(page.read_text("utf-8"))["break"]]


def _parse_break(row: dict[str, Any]) -> CheckedBreak:
    names = {item.name for item in dataclasses.fields(CheckedBreak)}
    assert row.keys() <= names, row.keys() - names
    row = {"file": "", "old": "", "new": "", **row, "causes": tuple(row["causes"])}
    return CheckedBreak(**row)
