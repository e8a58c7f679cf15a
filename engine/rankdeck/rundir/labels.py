"""What a person says of a run: another name, tags, a note, whether it is put away. The folder never moves.

It lies in the run's labels.json, and is the only file there that changes after the run is over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.base.names import LONGEST_NAME, checked_name
from rankdeck.base.phrases import marked, phrase

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_TAG = 40
MOST_TAGS = 50
LONGEST_NOTE = 20_000
_LONG_TAG = marked("This tag has {count} characters; at most {most} are kept.")
_LONG_NOTE = marked("This note has {count} characters; at most {most} are kept.")


@dataclass(frozen=True)
class Labels:
    """All empty for a run of which nobody has said anything."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    is_archived: bool = False

    def changed(self, **changes: Any) -> Labels:
        """With other values, and in order: one line of a name, each tag once.

        Raises:
            ConfigError: a name, tag or note is too long, there are too many tags, or the name is "last".
        """
        labels = replace(self, **changes)
        name = checked_name(labels.name)
        tags = tuple(dict.fromkeys(tag for tag in (" ".join(tag.split()) for tag in labels.tags) if tag))
        for too_long, text, longest in (
            *((_LONG_TAG, tag, LONGEST_TAG) for tag in tags),
            (_LONG_NOTE, labels.note, LONGEST_NOTE),
        ):
            if len(text) > longest:
                raise ConfigError(phrase(too_long, count=len(text), most=longest))
        if len(tags) > MOST_TAGS:
            many = phrase("These are {count} tags; at most {most} are kept.", count=len(tags), most=MOST_TAGS)
            raise ConfigError(many)
        return replace(labels, name=name, tags=tags, note=labels.note.strip())


def read_labels(run: Path) -> Labels:
    """What labels.json says; what it does not say, or not as it was written, is empty."""
    try:
        told = files.read_json(_file(run))
    except (OSError, ValueError):
        return Labels()
    name, tags, note = told.get("name"), told.get("tags"), told.get("note")
    return Labels(
        name=" ".join(name.split())[:LONGEST_NAME] if isinstance(name, str) else "",
        tags=tuple(tag[:LONGEST_TAG] for tag in tags[:MOST_TAGS] if isinstance(tag, str))
        if isinstance(tags, list)
        else (),
        note=note[:LONGEST_NOTE] if isinstance(note, str) else "",
        is_archived=told.get("archived") is True,
    )


def write_labels(run: Path, labels: Labels) -> None:
    """Replace what is said of the run; where nothing is left to say, the file goes.

    Raises:
        ConfigError: the file cannot be written.
    """
    file = _file(run)
    told = {"name": labels.name, "tags": labels.tags, "note": labels.note, "archived": labels.is_archived}
    try:
        if labels == Labels():
            file.unlink(missing_ok=True)
        else:
            files.write_own(file, json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigError(
            phrase("{path} cannot be written: {why}.", path=file, why=error.strerror),
            code="labels",
            path=str(file),
            advice=phrase("Mend the folder's permissions."),
        ) from None


def labels_stamp(run: Path) -> int | None:
    """Another number after each change; None where nothing was said."""
    try:
        return _file(run).stat().st_mtime_ns
    except OSError:
        return None


def _file(run: Path) -> Path:
    return run / "labels.json"
