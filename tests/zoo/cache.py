"""What came of each run, in a file that grows line by line: a long check goes on where it was cut off.

A result counts as long as the engine's source and the files of its entry are the same; what an older engine
said, or a page (grid.py), is shown until it is run again. Read page.py next.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
from collections.abc import Iterable
from pathlib import Path

from tests.helpers.checkout import CHECKOUT
from tests.zoo import grid
from tests.zoo.compare import Outcome
from tests.zoo.registry import ENGINE_LOSSES, Entry
from tests.zoo.strategies import Setting

_ENGINE_PACKAGES = (
    "base",
    "checkpoint",
    "config",
    "data",
    "models",
    "parallel",
    "strategies",
    "torch_compat",
    "training",
)


@dataclasses.dataclass(frozen=True)
class ZooResult:
    """An outcome with what it is of; `is_current` says that nothing has changed since."""

    entry: str
    setting: str
    outcome: Outcome
    is_current: bool
    seconds: float = 0.0

    @property
    def is_bad(self) -> bool:
        return self.outcome.kind in ("different", "failed")

    def text(self) -> str:
        """As a person reads it."""
        outcome = self.outcome
        size = "" if outcome.difference is None or outcome.kind == "equal" else f" {outcome.difference:.1e}"
        where = f" at {outcome.where}" if size else ""
        of = f"{outcome.kind:9}  {self.entry} under {self.setting}"
        return f"{of}{size}{where} {outcome.reason[:200]}".rstrip()


class ResultCache:
    """Results by entry and setting, the newest of each."""

    def __init__(self, folder: Path, page: Path | None = None) -> None:
        """`page` is what another clone knew."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "results.jsonl"
        self._engine = engine_digest()
        self._rows: dict[tuple[str, str], dict[str, object]] = {
            (entry, setting): {"engine": "", "files": files, "seconds": 0.0, "outcome": vars(outcome)}
            for entry, setting, files, outcome in (grid.parse_page(page) if page is not None else ())
        }
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # it was cut off in the middle of a line
            self._rows[row["entry"], row["setting"]] = row

    def put(self, entry: Entry, setting: Setting, outcome: Outcome, seconds: float) -> ZooResult:
        row: dict[str, object] = {
            "entry": entry.key,
            "setting": setting.name,
            "engine": self._engine,
            "files": files_digest(entry),
            "seconds": round(seconds, 2),
            "outcome": dataclasses.asdict(outcome),
        }
        self._rows[entry.key, setting.name] = row
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return ZooResult(entry.key, setting.name, outcome, is_current=True, seconds=seconds)

    def get(self, entry: Entry, setting: Setting) -> ZooResult | None:
        """None where it was never run as it is."""
        row = self._rows.get((entry.key, setting.name))
        if row is None or not files_digest(entry).startswith(str(row["files"])):
            return None
        outcome = Outcome(**row["outcome"])  # type: ignore[arg-type]
        is_current = row["engine"] == self._engine
        return ZooResult(entry.key, setting.name, outcome, is_current, float(str(row["seconds"])))


@functools.cache
def engine_digest() -> str:
    """Of all that a run's weights depend on."""
    root = CHECKOUT / "engine/rankdeck"
    return _digest(file for room in _ENGINE_PACKAGES for file in sorted((root / room).rglob("*.py")))


@functools.cache
def _files_digest(text: str, modules: tuple[str, ...]) -> str:
    files = [Path(str(importlib.import_module(module).__file__)) for module in modules]
    return _digest(files) + hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def files_digest(entry: Entry) -> str:
    """Of an entry and of the files that it names."""
    used = (entry.model, entry.data, entry.loss, str(entry.optimizer["use"]))
    modules = {use.partition(":")[0] for use in used if use not in ENGINE_LOSSES and "tests." in use}
    return _files_digest(repr(entry), tuple(sorted({*modules, "tests.zoo.oracle", "tests.zoo.compare"})))


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
