"""Runs entries of the zoo under settings, one after another, on ranks that stay.

Ranks that hang are killed after a deadline, and ranks that died are started anew: the next run finds a whole
set. Read compare.py before, cache.py next.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.helpers import ranks as rank_sets
from tests.helpers.waiting import with_load
from tests.zoo import oracle
from tests.zoo.compare import Outcome, judge
from tests.zoo.nursery import ForkedRanks, Nursery
from tests.zoo.registry import Entry
from tests.zoo.strategies import Setting

DEADLINE_S = 60.0
"""For a run of a second or two; one that torch.export traces takes ten."""
WITHOUT_IT_S = 1.0
"""How long the others are waited for once a rank has failed."""
RUNS_PER_SET = 150
"""Each run leaves a thread or two of its process groups."""


class Ranks(ForkedRanks):
    """A set that is asked once, within a deadline."""

    num_asked = 0

    def ask(self, request: dict[str, Any], deadline_s: float) -> None:
        """Raises: AssertionError with what the ranks said. Then the set may be at its end."""
        self.num_asked += 1
        timer = threading.Timer(deadline_s, self._signal, [signal.SIGKILL])
        timer.start()
        try:
            with mock.patch.object(rank_sets, "WITHOUT_IT_S", WITHOUT_IT_S):
                self._asked(request)
        finally:
            timer.cancel()


class Runner:
    """Trains entries under settings, and says what came of it. Close it.

    The oracle's answers are kept: each entry comes under many settings.
    """

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self._folder = Path(tempfile.mkdtemp(prefix="zoo-"))
        self._log = self._folder / "ranks.err"
        self._nursery = Nursery(self._log)
        self._sets: dict[int, Ranks] = {}
        self._trained: dict[str, oracle.Trained] = {}

    def run(self, entry: Entry, setting: Setting, *, breaks: str = "") -> Outcome:
        """One run beside the oracle. `breaks` as in inside.py."""
        try:
            expected = self._expected(entry)
        except Exception:
            return Outcome("failed", reason="the oracle itself failed", detail=traceback.format_exc()[-2000:])
        return self._run(entry, setting, expected, breaks)

    def _run(self, entry: Entry, setting: Setting, expected: oracle.Trained, breaks: str) -> Outcome:
        self._log.write_bytes(b"")
        with self._emptied("run") as folder:
            arguments = {"toml": entry.toml(setting.table, setting.num_devices), "folder": str(folder)}
            request = {"call": "tests.zoo.inside:train", "arguments": {**arguments, "breaks": breaks}}
            has_answered = self._ask(setting.num_ranks, request)
            left = [folder / f"rank-{number}.json" for number in range(setting.num_ranks)]
            ranks = [json.loads(file.read_text()) if file.exists() else {} for file in left]
            weights = folder / "weights.pt"
            outcome = judge(setting, expected, torch.load(weights) if weights.exists() else None, ranks)
        if not all(ranks):  # one died: what torch wrote then is nowhere else
            outcome.detail += self._log.read_text(errors="replace")[-2000:]
        if not has_answered:
            # Some may still wait for the others, or have messages of theirs that the next run would take.
            self._drop(setting.num_ranks)
        return outcome

    def _expected(self, entry: Entry) -> oracle.Trained:
        if entry.key not in self._trained:
            self._trained[entry.key] = oracle.train(entry)
        return self._trained[entry.key]

    def _ask(self, num_ranks: int, request: dict[str, Any]) -> bool:
        """Whether all went well. What the ranks raised is in the files that they left."""
        try:
            self._set_of(num_ranks).ask(request, with_load(self.deadline_s))
        except AssertionError:
            return False
        return True

    def _set_of(self, num_ranks: int) -> Ranks:
        if num_ranks in self._sets and self._sets[num_ranks].num_asked >= RUNS_PER_SET:
            self._drop(num_ranks)
        if num_ranks not in self._sets:
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            self._sets[num_ranks] = Ranks(num_ranks, folder, self._nursery)
        return self._sets[num_ranks]

    def _drop(self, num_ranks: int) -> None:
        self._sets.pop(num_ranks).close()

    @contextmanager
    def _emptied(self, name: str) -> Iterator[Path]:
        folder = self._folder / name
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def end_ranks(self) -> None:
        """New ones are forked for the next run."""
        for num_ranks in list(self._sets):
            self._drop(num_ranks)

    def close(self) -> None:
        self.end_ranks()
        self._nursery.close()
        shutil.rmtree(self._folder, ignore_errors=True)
