"""Rows answered side by side, each in a process of its own: a crash, a time-out or a refusal is one line.

    this process imports torch once -> forks a child per row, a few at a time -> reads its line from a pipe

Forking is safe while this process has one thread and no process group, and spares each row the import. A
person's model may print, call exit or die of a signal: none of it reaches the other rows, nor stdout. Read
answer.py before.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from rankdeck import plan_lines
from rankdeck.config import RunConfig
from rankdeck.plan_lines import CANNOT, PlanLine
from rankdeck.planner.answer import answer
from rankdeck.planner.rows import Row
from rankdeck.planner.targets import Target

ROW_TIMEOUT_S = 180.0
MOST_AT_ONCE = 4
_CHUNK = 1 << 16


def answers(
    base: RunConfig,
    rows: Sequence[Row],
    target: Target,
    *,
    scale: float | None = None,
    timeout_s: float = ROW_TIMEOUT_S,
    answering: Callable[[RunConfig, Row, Target, float | None], PlanLine] = answer,
) -> Iterator[PlanLine]:
    """The lines of all rows as they come, which need not be their order. `scale`: see step_time.py."""
    warm_up()
    waiting = list(rows)
    running: list[_Child] = []
    most = max(1, min(MOST_AT_ONCE, os.cpu_count() or 1))
    try:
        with selectors.DefaultSelector() as selector:
            while waiting or running:
                while waiting and len(running) < most:
                    child = _Child.start(waiting.pop(0), lambda row: answering(base, row, target, scale))
                    running.append(child)
                    selector.register(child.pipe, selectors.EVENT_READ, child)
                for child in _ready(selector, running, timeout_s):
                    selector.unregister(child.pipe)
                    running.remove(child)
                    yield child.line(target)
    finally:
        for child in running:
            child.kill()


def warm_up() -> None:
    """Import what every row needs, so that children have it."""
    import torch._dynamo  # noqa: F401 - an optimizer's constructor would, in every child

    import rankdeck.planner.fake_pass  # noqa: F401


def _ready(selector: selectors.BaseSelector, running: Sequence[_Child], timeout_s: float) -> list[_Child]:
    """Children that said something, ended, or took too long."""
    now_s = time.monotonic()
    patience_s = max(0.0, min(child.started_s for child in running) + timeout_s - now_s)
    for key, _ in selector.select(patience_s):
        child: _Child = key.data
        child.read()
    for child in running:
        if time.monotonic() - child.started_s >= timeout_s and not child.is_done:
            child.kill()
            child.timed_out_s = timeout_s
    return [child for child in running if child.is_done]


@dataclass(eq=False)
class _Child:
    """A process that answers one row."""

    row: Row
    pid: int
    pipe: int
    errors: IO[bytes]
    started_s: float = field(default_factory=time.monotonic)
    said: bytes = b""
    is_done: bool = False
    status: int = 0
    timed_out_s: float | None = None

    @classmethod
    def start(cls, row: Row, answering: Callable[[Row], PlanLine]) -> _Child:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has been read
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_child(row, answering, writing, errors.fileno())
        os.close(writing)
        return cls(row, pid, reading, errors)

    def read(self) -> None:
        chunk = os.read(self.pipe, _CHUNK)
        self.said += chunk
        if not chunk:
            self._end()

    def kill(self) -> None:
        if not self.is_done:
            os.kill(self.pid, signal.SIGKILL)
            self._end()

    def _end(self) -> None:
        _, self.status = os.waitpid(self.pid, 0)
        self.is_done = True

    def line(self, target: Target) -> PlanLine:
        """What the child said, or what became of it."""
        os.close(self.pipe)
        with self.errors:
            if self.said.endswith(b"\n") and self.timed_out_s is None:
                return plan_lines.decode(self.said)
            return PlanLine(
                strategy=self.row.strategy,
                options=self.row.options,
                label=self.row.label,
                verdict=CANNOT,
                reason=self._end_in_words(),
                seconds=time.monotonic() - self.started_s,
                target=target.words,
                configured=self.row.configured,
                changes=self.row.changes,
            )

    def _end_in_words(self) -> str:
        if self.timed_out_s is not None:
            return f"The planner had no answer after {self.timed_out_s:.0f} s."
        if os.WIFSIGNALED(self.status):
            how = signal.Signals(os.WTERMSIG(self.status)).name
        else:
            how = f"exit code {os.WEXITSTATUS(self.status)}"
        self.errors.seek(0)
        last = [line for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"The planner's process died ({how})" + (f": {last[-1].strip()[:200]}" if last else ".")


def _be_child(row: Row, answering: Callable[[Row], PlanLine], writing: int, errors: int) -> None:
    """Answer and leave, without any of the parent's own ends: buffers, handlers, tests."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(plan_lines.encode(answering(row)))
        code = 0
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
