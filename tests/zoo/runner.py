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
from tests.helpers.waiting import scale_timeout
from tests.zoo import oracle
from tests.zoo.compare import Outcome, judge
from tests.zoo.nursery import ForkedRanks, ForkServer
from tests.zoo.registry import Entry
from tests.zoo.strategies import Setting

DEADLINE_S = 60.0
"""For a run of a second or two; one that torch.export traces takes ten."""
FAILURE_GRACE_S = 1.0
"""How long the others are waited for once a rank has failed."""
RUNS_PER_SET = 150
"""Each run leaves a thread or two of its process groups."""


class ZooRanks(ForkedRanks):
    """A set that is asked once, within a deadline."""

    num_requests = 0

    def send_request(self, request: dict[str, Any], deadline_s: float) -> None:
        """Raises: AssertionError with what the ranks said. Then the set may be at its end."""
        self.num_requests += 1
        timer = threading.Timer(deadline_s, self._signal, [signal.SIGKILL])
        timer.start()
        try:
            with mock.patch.object(rank_sets, "FAILURE_TIMEOUT_S", FAILURE_GRACE_S):
                self._ask_once(request)
        finally:
            timer.cancel()


class ZooRunner:
    """Trains entries under settings, and says what came of it. Close it.

    The oracle's answers are kept: each entry comes under many settings.
    """

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self._folder = Path(tempfile.mkdtemp(prefix="zoo-"))
        self._log = self._folder / "ranks.err"
        self._fork_server = ForkServer(self._log)
        self._rank_sets: dict[int, ZooRanks] = {}
        self._oracle_results: dict[str, oracle.OracleResult] = {}

    def run(self, entry: Entry, setting: Setting, *, breaks: str = "") -> Outcome:
        """One run beside the oracle. `breaks` as in inside.py."""
        try:
            expected = self._run_oracle(entry)
        except Exception:
            return Outcome("failed", reason="the oracle itself failed", detail=traceback.format_exc()[-2000:])
        return self._run(entry, setting, expected, breaks)

    def _run(self, entry: Entry, setting: Setting, expected: oracle.OracleResult, breaks: str) -> Outcome:
        self._log.write_bytes(b"")
        with self._temporary_folder("run") as folder:
            arguments = {"toml": entry.toml(setting.table, setting.num_devices), "folder": str(folder)}
            request = {"call": "tests.zoo.inside:train", "arguments": {**arguments, "breaks": breaks}}
            has_answered = self._send_request(setting.num_ranks, request)
            left = [folder / f"rank-{number}.json" for number in range(setting.num_ranks)]
            ranks = [json.loads(file.read_text()) if file.exists() else {} for file in left]
            weights = folder / "weights.pt"
            outcome = judge(setting, expected, torch.load(weights) if weights.exists() else None, ranks)
        if not all(ranks):  # one died: what torch wrote then is nowhere else
            outcome.detail += self._log.read_text(errors="replace")[-2000:]
        if not has_answered:
            # Some may still wait for the others, or have messages of theirs that the next run would take.
            self._close_set(setting.num_ranks)
        return outcome

    def _run_oracle(self, entry: Entry) -> oracle.OracleResult:
        if entry.key not in self._oracle_results:
            self._oracle_results[entry.key] = oracle.train(entry)
        return self._oracle_results[entry.key]

    def _send_request(self, num_ranks: int, request: dict[str, Any]) -> bool:
        """Whether all went well. What the ranks raised is in the files that they left."""
        try:
            self._rank_set_of(num_ranks).send_request(request, scale_timeout(self.deadline_s))
        except AssertionError:
            return False
        return True

    def _rank_set_of(self, num_ranks: int) -> ZooRanks:
        if num_ranks in self._rank_sets and self._rank_sets[num_ranks].num_requests >= RUNS_PER_SET:
            self._close_set(num_ranks)
        if num_ranks not in self._rank_sets:
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            self._rank_sets[num_ranks] = ZooRanks(num_ranks, folder, self._fork_server)
        return self._rank_sets[num_ranks]

    def _close_set(self, num_ranks: int) -> None:
        self._rank_sets.pop(num_ranks).close()

    @contextmanager
    def _temporary_folder(self, name: str) -> Iterator[Path]:
        folder = self._folder / name
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def end_ranks(self) -> None:
        """New ones are forked for the next run."""
        for num_ranks in list(self._rank_sets):
            self._close_set(num_ranks)

    def close(self) -> None:
        self.end_ranks()
        self._fork_server.close()
        shutil.rmtree(self._folder, ignore_errors=True)
