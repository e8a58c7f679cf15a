"""Words for a person's own script: what it is called, and how it ended."""

from __future__ import annotations

import signal
from pathlib import PurePath
from typing import TYPE_CHECKING

from rankdeck import events
from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.rundir import RunDir, events_from_end

if TYPE_CHECKING:
    from rankdeck.config.script import ScriptConfig


def script_of(run: RunDir) -> ScriptConfig | None:
    """The script that a run is of; None for a configuration, and where its file is damaged."""
    try:
        return run.script()
    except ConfigError:
        return None


def name_of(config: ScriptConfig) -> str:
    """What a person calls the script: the file's name, the module or the program."""
    script = config.script
    return script.run if script.kind == "module" else PurePath(script.folder, script.run).name


def status_in_words(name: str, status: int) -> Phrase:
    """'train.py exited with 3.'"""
    try:
        ended_by = signal.Signals(status - 128).name if status > 128 else ""
    except ValueError:
        ended_by = ""
    if not ended_by:
        return phrase("{name} exited with {status}.", name=name, status=status)
    return phrase("{name} exited with {status} ({signal}).", name=name, status=status, signal=ended_by)


def without_steps(*, began: bool, is_over: bool) -> Phrase:
    """Why there are no steps. `began`: a rank was seen; none is before its first step."""
    if began and is_over:
        return phrase("it ended before its first steps were written down")
    return phrase("no optimizer step was seen") if is_over else phrase("no optimizer step was seen yet")


def status_of(run: RunDir) -> int | None:
    """What the script of the latest attempt exited with; None where nobody told (yet)."""
    told = events_from_end(run.events_folder / f"supervisor.{run.next_attempt() - 1}.jsonl")
    end = next((event for event in told if isinstance(event, events.RunEnded)), None)
    return None if end is None else end.script_status
