"""`rankdeck stacks`: where every rank of a living run stands. Asking disturbs nobody's step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, RunName, find_run
from rankdeck.diagnose.stacks import where

if TYPE_CHECKING:
    from rankdeck.diagnose.stacks import Frame
    from rankdeck.launch.stacks import RankStack

_WHY = {
    "suspended": phrase("suspended by a signal (SIGSTOP)"),
    "debugger": phrase("a debugger is attached"),
    "ended": phrase("its process has ended"),
    "unheard": phrase("it listens to no signal"),
}
_SILENT = phrase("it has not answered")


def stacks(
    name: RunName,
    threads: Annotated[bool, typer.Option("--all", help="Every thread, as Python writes them.")] = False,
    as_json: AsJson = False,
) -> int:
    """Tell where every rank of a running run stands: the line of your own code first, and its collective."""
    from rankdeck.launch.control import NotRunningError
    from rankdeck.launch.stacks import stacks_of

    run = find_run(name)
    if not run.is_alive():
        raise NotRunningError(phrase("{run} is not running: {outcome}.", run=run.name, outcome=run.outcome()))
    found = stacks_of(run)
    if not found:
        raise MachineError(
            phrase("No rank of {run} has begun yet.", run=run.name),
            code="no-ranks",
            advice=phrase("Ask again in a moment."),
        )
    if as_json:
        console.as_json({"run": run.name, "ranks": [_as_json(stack) for stack in found]})
        return 0
    for stack in found:
        console.out().print(f"rank {stack.rank} ({stack.pid}): {_words(stack)}", soft_wrap=True)
        if threads:
            console.out().print(stack.answer.text, soft_wrap=True)
            continue
        for frame in stack.answer.frames:
            console.out().print(f"    {frame.words()}", soft_wrap=True)
    return 0


def _words(stack: RankStack) -> Phrase:
    if not stack.answer.frames:
        return _WHY.get(stack.why or "", _SILENT)
    call = stack.answer.call
    if call is None:
        return where(stack.answer.frames)
    return phrase("{place}: {call}", place=where(stack.answer.frames), call=call.words())


def _as_json(stack: RankStack) -> dict[str, Any]:
    call = stack.answer.call
    return {
        "rank": stack.rank,
        "pid": stack.pid,
        "why": stack.why if stack.answer.frames or stack.why else "silent",
        "frames": [_frame(frame) for frame in stack.answer.frames],
        "collective": call
        and {"group": call.group, "number": call.number, "kind": call.kind, "shape": call.shape},
        "text": stack.answer.text,
    }


def _frame(frame: Frame) -> dict[str, Any]:
    return {"file": frame.file, "line": frame.line, "function": frame.function}
