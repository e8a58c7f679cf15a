"""The scripts of a folder that look as if they train, found by reading them: nothing is executed.

What imports torch or a library above it counts; the likeliest come first. Hidden folders, environments and
links are left out, and a folder that is too large is searched in part.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankdeck.base import files
from rankdeck.config.environments import is_environment

LIBRARIES = (
    "torch",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "accelerate",
    "deepspeed",
    "fairseq",
    "timm",
    "ignite",
    "composer",
    "fastai",
    "trl",
    "diffusers",
    "torchvision",
    "monai",
    "ultralytics",
)
_READ_BYTES = 64 << 10
_MOST_DEPTH = 4
_MOST_ENTRIES = 20_000
_MOST_SCRIPTS = 200
_SKIPPED = {"site-packages", "dist-packages", "node_modules", "__pycache__", "build", "dist", "runs"}

_NAMES = "|".join(LIBRARIES)
_OTHERS = r"(?:[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*,[ \t]*)*"
_IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+({_NAMES})\b|import[ \t]+{_OTHERS}({_NAMES})\b)",
    re.MULTILINE,
)
_SIGNS = (  # (what is in the text, how much likelier that makes it)
    (re.compile(r"^if __name__\s*==", re.MULTILINE), 3),
    (re.compile(r"\.backward\(|\.fit\(|\.train\(\)|Trainer\("), 3),
    (re.compile(r"\boptim(?:izer)?s?\b"), 2),
    (re.compile(r"ArgumentParser|@click\.|typer\.|@hydra\.main|HfArgumentParser"), 1),
)
_GOOD_NAME = re.compile(r"train|finetune|fine_tune|pretrain|^main|^run|^sft|^fit")
_BAD_NAME = re.compile(
    r"^test_|_test\.py$|^conftest|^setup\.py$|^__init__|^eval|^(?:sample|infer|predict|export)"
)


@dataclass(frozen=True)
class FoundScript:
    """A script and the libraries that it imports. `name` is its path in the folder."""

    path: Path
    name: str
    libraries: tuple[str, ...]
    likelihood: int


def scripts_in(folder: Path) -> list[FoundScript]:
    """The likeliest first, then by name; at most 200."""
    found = [script for path in _python_files(folder) if (script := _look(path, folder)) is not None]
    return sorted(found, key=lambda script: (-script.likelihood, script.name))[:_MOST_SCRIPTS]


def _python_files(folder: Path) -> Iterator[Path]:
    """Breadth first, so that of a folder that is too large the near part is seen."""
    waiting, seen = deque([(folder, 0)]), 0
    while waiting:
        place, depth = waiting.popleft()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > _MOST_ENTRIES:
                return
            if entry.name.startswith("."):
                continue
            if entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            elif depth < _MOST_DEPTH and entry.is_dir(follow_symlinks=False):
                inner = Path(entry.path)
                if entry.name not in _SKIPPED and not is_environment(inner):
                    waiting.append((inner, depth + 1))


def _look(path: Path, folder: Path) -> FoundScript | None:
    """None where it imports none of the libraries."""
    try:
        text = files.read_at(path, 0, _READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    libraries = {found[1] or found[2] for found in _IMPORT.finditer(text)}
    if not libraries:
        return None
    name = path.relative_to(folder).as_posix()
    likelihood = sum(points for sign, points in _SIGNS if sign.search(text)) - name.count("/")
    likelihood += 3 * bool(_GOOD_NAME.search(path.name)) - 4 * bool(_BAD_NAME.search(path.name))
    likelihood -= 4 * bool({"tests", "test"} & set(path.relative_to(folder).parts[:-1]))
    return FoundScript(path, name, tuple(sorted(libraries)), likelihood)
