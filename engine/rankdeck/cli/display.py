"""What `train` and `watch` show while a run goes on.

On a terminal a picture that is redrawn (live.py), piped plain lines (lines.py), with `watch --json` the
events themselves. A display is picked and fed by follow.py and never waits.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rankdeck import events

if TYPE_CHECKING:
    from rankdeck.run.fold import Fold  # brings numpy, which a list of runs does not need


class Display:
    """Shown from `open` to `close`. This one shows nothing: `train --json` speaks once, at the end."""

    age_s: float | None = None
    """How old what is shown is, where it comes from a host that does not answer."""

    def open(self) -> None:
        pass

    def event(self, writer: str, event: events.AnyEvent, fold: Fold) -> None:
        """One event, already folded into `fold`."""

    def tick(self, fold: Fold) -> None:
        """Several times a second, whether or not there was an event."""

    def say(self, words: str) -> None:
        """A remark of the command's own."""

    def close(self) -> None:
        pass


class JsonLines(Display):
    """Every event as a JSON line with its writer."""

    def event(self, writer: str, event: events.AnyEvent, fold: Fold) -> None:
        sys.stdout.write(f'{{"writer":"{writer}",{events.encode(event).decode()[1:]}')

    def tick(self, fold: Fold) -> None:
        sys.stdout.flush()
