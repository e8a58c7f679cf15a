"""A persistent set of gloo ranks that trains one configuration after another: a table costs one start, and
the ranks of a set one import of torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from tests.helpers.checkout import PRODUCT_AND_TESTS
from tests.helpers.processes import MARK, SESSION
from tests.helpers.waiting import scale_timeout

FAILURE_TIMEOUT_S = 10.0
"""How long the others have to notice that a rank failed."""


_CONNECTION_LOST = "connectFullMesh failed"
"""gloo's words where a rank that is there closed the connection while a group was made."""


class RankDiedError(AssertionError):
    """A rank ended without an answer, by a signal and not by an exception, or gloo cut ranks off."""


class RankSet:
    """`world_size` ranks on this machine, waiting for configurations. Close it.

    They are stopped while nobody asks: each of their process groups keeps a thread that wakes up a hundred
    times a second. If who asks is killed, the kernel ends them, as it does stopped groups without a parent.
    A set is of the test that makes it, or of the session, also where it is started anew.
    """

    def __init__(self, world_size: int, folder: Path) -> None:
        self._world_size = world_size
        self._folder = folder
        self._num_runs = self._num_starts = 0
        self._mark = {MARK: os.environ.get(MARK, SESSION)}
        self._start()

    def _start(self) -> None:
        self._num_starts += 1
        store = self._folder / f"store-{self._num_starts}"
        pairs = [socket.socketpair() for _ in range(self._world_size)]
        self._ranks = [ours.makefile("rw") for ours, _ in pairs]
        self._ears = [ours.fileno() for ours, _ in pairs]
        numbers = [theirs.fileno() for _, theirs in pairs]
        script = str(Path(__file__).with_name("rank_main.py"))
        self._starter = subprocess.Popen(
            [sys.executable, script, str(store), *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PRODUCT_AND_TESTS} | self._mark,
            pass_fds=numbers,
            process_group=0,
        )
        for pair in pairs:
            for end in pair:  # ours stays open as long as its file does
                end.close()
        self._answers()  # they have met
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        """To all ranks and to their starter, which are the set's own process group."""
        os.killpg(self._starter.pid, number)

    def train(self, toml: str, **request: Any) -> dict[str, Tensor]:
        """Final weights of one run over all ranks; an AssertionError shows what one raised."""
        self._num_runs += 1
        out = self._folder / f"weights-{self._num_runs}.safetensors"
        self._request({"toml": toml, "out": str(out), **request})
        return load_file(out)

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """What `module:function` returns on each rank, called with these arguments; both as JSON has them."""
        return self._request({"call": function, "arguments": arguments})

    def _request(self, request: dict[str, Any]) -> list[Any]:
        """Once more with new ranks where one died: in one of some 60 suites a heap was found broken
        (malloc_consolidate, fsdp over gloo), and by no check of the allocator since. In one of some hundred
        two ranks that had met could not make another group.
        """
        try:
            return self._ask_once(request)
        except RankDiedError as died:
            warnings.warn(f"a rank died and is asked once more: {request}\n{died}", stacklevel=3)
        self.close()
        self._start()
        return self._ask_once(request)

    def _ask_once(self, request: dict[str, Any]) -> list[Any]:
        self._signal(signal.SIGCONT)
        try:
            for rank in self._ranks:
                rank.write(json.dumps(request) + "\n")
                rank.flush()
        except BrokenPipeError:
            raise RankDiedError("it died after the last answer") from None
        try:
            return self._answers()
        finally:
            self._signal(signal.SIGSTOP)

    def _answers(self) -> list[Any]:
        """Of all ranks. Where one failed, others may wait for it for ever: then the set is at its end."""
        answers: dict[int, Any] = {}
        errors: list[str] = []
        has_died = False
        with selectors.DefaultSelector() as selector:
            for number, ear in enumerate(self._ears):
                selector.register(ear, selectors.EVENT_READ, number)
            while len(answers) < len(self._ranks):
                ready = selector.select(scale_timeout(FAILURE_TIMEOUT_S) if errors else None)
                if not ready:
                    self._signal(signal.SIGKILL)
                    break
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    line = self._ranks[key.data].readline()
                    has_died = has_died or not line
                    answer = json.loads(line or '{"error": "it died"}')
                    answers[key.data] = answer.get("result")
                    errors += [f"rank {key.data}: {answer['error']}"] if "error" in answer else []
        if has_died or any(_CONNECTION_LOST in error for error in errors):
            raise RankDiedError("\n".join(errors))
        assert not errors, "\n".join(errors)
        return [answers[number] for number in range(len(self._ranks))]

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        for rank in self._ranks:
            with contextlib.suppress(BrokenPipeError):
                rank.close()
        try:
            self._starter.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._starter.wait()


def alternate_pairs(rows: Iterable[Any], columns: Iterable[Any], *, every: int = 1) -> list[Any]:
    """(number of ranks, row, column): every row with every column, on 2 ranks and on 4 in turn.

    Every third pair, say, is run with every change and the others are slow; three rows and three columns or
    more are all among them.
    """
    return [
        pytest.param(
            2 + 2 * ((above + left) % 2),
            row,
            column,
            marks=pytest.mark.slow if (above + left) % every else (),
        )
        for above, row in enumerate(rows)
        for left, column in enumerate(columns)
    ]


def alternate_rows(rows: Iterable[Any]) -> list[Any]:
    """(number of ranks, row): every row on 2 ranks and on 4, of which one is slow, by turns."""
    return [
        pytest.param(
            num_ranks,
            *(row if isinstance(row, tuple) else (row,)),
            marks=pytest.mark.slow if (index + turn) % 2 else (),
        )
        for index, row in enumerate(rows)
        for turn, num_ranks in enumerate((2, 4))
    ]


four_are_slow = pytest.mark.parametrize(
    "ranks", [2, pytest.param(4, marks=pytest.mark.slow)], indirect=True, ids=["2-ranks", "4-ranks"]
)


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest absolute difference of any weight; both must have the same names."""
    assert left.keys() == right.keys()
    return max(float((_to_double(left[name]) - _to_double(right[name])).abs().max()) for name in left)


def _to_double(tensor: Tensor) -> Tensor:
    return tensor.cdouble() if tensor.is_complex() else tensor.double()
