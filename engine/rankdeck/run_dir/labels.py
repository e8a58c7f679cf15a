"""Read and write the labels that a user gives a run: a name, tags, a note, and whether it is archived.

Labels are stored in the run's labels.json, the only file that changes after the run has ended. Naming a run
does not rename its folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.base.names import MAX_NAME_LENGTH, validate_name
from rankdeck.base.phrases import phrase, tr_noop

if TYPE_CHECKING:
    from pathlib import Path

MAX_TAG_LENGTH = 40
MAX_TAGS = 50
MAX_NOTE_LENGTH = 20_000
_LONG_TAG_TEXT = tr_noop("This tag has {count} characters, but the limit is {most}.")
_LONG_NOTE_TEXT = tr_noop("This note has {count} characters, but the limit is {most}.")


@dataclass(frozen=True)
class Labels:
    """A run's labels; all empty by default."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    is_archived: bool = False

    def with_changes(self, **changes: Any) -> Labels:
        """Return a normalized copy with `changes` applied: the name on one line, each tag once.

        Raises:
            ConfigError: a name, tag or note is too long, there are too many tags, or the name is "last".
        """
        labels = replace(self, **changes)
        name = validate_name(labels.name)
        tags = tuple(dict.fromkeys(tag for tag in (" ".join(tag.split()) for tag in labels.tags) if tag))
        for too_long, text, longest in (
            *((_LONG_TAG_TEXT, tag, MAX_TAG_LENGTH) for tag in tags),
            (_LONG_NOTE_TEXT, labels.note, MAX_NOTE_LENGTH),
        ):
            if len(text) > longest:
                raise ConfigError(phrase(too_long, count=len(text), most=longest))
        if len(tags) > MAX_TAGS:
            many = phrase("There are {count} tags, but the limit is {most}.", count=len(tags), most=MAX_TAGS)
            raise ConfigError(many)
        return replace(labels, name=name, tags=tags, note=labels.note.strip())


def read_labels(run: Path) -> Labels:
    """Return the labels in labels.json. A missing or invalid label is empty."""
    try:
        values = files.read_json(_labels_file(run))
    except (OSError, ValueError):
        return Labels()
    name, tags, note = values.get("name"), values.get("tags"), values.get("note")
    return Labels(
        name=" ".join(name.split())[:MAX_NAME_LENGTH] if isinstance(name, str) else "",
        tags=tuple(tag[:MAX_TAG_LENGTH] for tag in tags[:MAX_TAGS] if isinstance(tag, str))
        if isinstance(tags, list)
        else (),
        note=note[:MAX_NOTE_LENGTH] if isinstance(note, str) else "",
        is_archived=values.get("archived") is True,
    )


def write_labels(run: Path, labels: Labels) -> None:
    """Replace the run's labels, removing the file if all are empty.

    Raises:
        ConfigError: the file cannot be written.
    """
    file = _labels_file(run)
    values = {"name": labels.name, "tags": labels.tags, "note": labels.note, "archived": labels.is_archived}
    try:
        if labels == Labels():
            file.unlink(missing_ok=True)
        else:
            files.replace_file(file, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigError(
            phrase("{path} cannot be written: {why}.", path=file, why=error.strerror),
            code="labels",
            path=str(file),
            advice=phrase("Fix the folder's permissions."),
        ) from None


def labels_stamp(run: Path) -> int | None:
    """Return the modification time of labels.json in nanoseconds, which changes with each write; None if the
    file is missing."""
    try:
        return _labels_file(run).stat().st_mtime_ns
    except OSError:
        return None


def _labels_file(run: Path) -> Path:
    return run / "labels.json"
