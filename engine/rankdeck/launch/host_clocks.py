"""The head's guard asks the others what time it is, and keeps beside the run how far their clocks are ahead:
what they write stays as it is, and readers of runs put its times right (rundir/clocks.py).

Standard library only, as all of the guard.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from rankdeck.launch.peers import Word
from rankdeck.launch.relay import name_in_files
from rankdeck.remote.clock import Clock

CLOCK = "clock"
"""The word of a question, and of its answer."""
ASK_S = 5.0
_FINE_S = 0.001
"""A clock that has gone by less is told as it was."""


class HostClocks:
    """Of one run. `ask(name, word)` sends a question."""

    def __init__(self, run: str, ask: Callable[[str, Word], None]) -> None:
        self._file, self._ask = Path(run, "clocks.jsonl"), ask
        self._clocks: dict[str, Clock] = {}
        self._asked: dict[str, tuple[float, float]] = {}
        self._next_s = 0.0
        self._attempt = 0
        self._ranks: Mapping[str, range] = {}
        self._told: dict[str, float] = {}

    def begin(self, attempt: int, ranks: Mapping[str, range]) -> None:
        """An attempt, and who has which of its ranks: what is known of the clocks counts from its start."""
        self._attempt, self._ranks = attempt, ranks
        self._told.clear()
        for name in ranks:
            self._tell(name, 0.0)

    def look(self, now_s: float, names: Collection[str]) -> None:
        """Again and again: ask those that are there, when it is time or one is new."""
        new = [name for name in names if name not in self._clocks]
        is_time = now_s >= self._next_s
        if is_time:
            self._next_s = now_s + ASK_S
        for name in names if is_time else new:
            self._clocks.setdefault(name, Clock())
            self._asked[name] = time.monotonic(), time.time()
            self._ask(name, {"word": CLOCK, "asked": self._asked[name][0]})

    def take(self, name: str, word: Word) -> None:
        """An answer; one to another question than the last is none."""
        asked_s, sent = self._asked.pop(name, (math.nan, 0.0))
        there = word.get("now")
        if word.get("asked") != asked_s or not isinstance(there, float) or not 0 <= there < 1e11:
            return
        self._clocks[name].add(sent, there, sent + time.monotonic() - asked_s)
        self._tell(name, there)

    def _tell(self, name: str, since: float) -> None:
        """Where it is not what is told already; `since` by that clock."""
        clock = self._clocks.get(name)
        if clock is None or clock.offset_s is None or name not in self._ranks:
            return
        if name in self._told and abs(clock.offset_s - self._told[name]) <= _FINE_S + clock.within_s:
            return
        ranks = self._ranks[name]
        line = {
            "attempt": self._attempt,
            "host": name_in_files(name),
            "ranks": [ranks.start, ranks.stop],
            "since": since if name in self._told else 0.0,
            "ahead_s": round(clock.offset_s, 6),
            "within_s": round(clock.within_s, 6),
        }
        self._told[name] = clock.offset_s
        try:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            pass  # a full disk
