"""`rankdeck queue`: runs that wait until enough devices are free."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankdeck.base.errors import ConfigError, RankdeckError
from rankdeck.base.masking import mask_arguments
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, Overrides

if TYPE_CHECKING:
    from rankdeck.queue.entry import Entry, Need
    from rankdeck.queue.spool import Spool

app = typer.Typer(help="Queue runs until devices are free.", no_args_is_help=True)

EntryName = Annotated[str, typer.Argument(metavar="ENTRY", help="Number or name of an entry.")]
Words = Annotated[
    list[str],
    typer.Argument(
        metavar="CONFIG | -- run SCRIPT [ARGS]", help="A configuration, a preset, or a script's command."
    ),
]
Devices = Annotated[
    str | None, typer.Option(help="Devices: 2 (any two), gpu:0,2, cpu:4. Default: the run's own.")
]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory that must be free on each GPU: 20GiB.")
]
Priority = Annotated[int, typer.Option(help="Entries with a higher priority start first.")]
After = Annotated[
    list[str] | None, typer.Option(metavar="ENTRY", help="Start only after this entry has completed.")
]
NotBefore = Annotated[
    str | None, typer.Option(metavar="TIME", help='Earliest start: 22:30 or "2026-12-31 08:00".')
]
Retry = Annotated[int, typer.Option(min=0, help="Start again up to N times after a failure.")]
_WAIT_INTERVAL_S = 0.3


@app.command()
def add(
    context: typer.Context,
    words: Words,
    devices: Devices = None,
    overrides: Overrides = None,
    memory: Memory = None,
    priority: Priority = 0,
    after: After = None,
    not_before: NotBefore = None,
    retry: Retry = 0,
    name: Annotated[str | None, typer.Option(help="Name of the entry and its run.")] = None,
    is_held: Annotated[bool, typer.Option("--hold", help="Do not start it before it is released.")] = False,
    as_json: AsJson = False,
) -> int:
    """Add a run to the queue.

    A script's command follows two dashes, as in rankdeck queue add -- run train.py --lr 0.1. The entry keeps
    the configuration, the folder and the environment of this moment.
    """
    from rankdeck import run_dir
    from rankdeck.cli import queue_add
    from rankdeck.launch.environment_facts import git_commit
    from rankdeck.queue.dispatcher import ensure_dispatcher
    from rankdeck.queue.entry import Entry
    from rankdeck.queue.spool import Spool

    spool = Spool()
    config, runs = queue_add.config_of(context, words, overrides, name)
    need = queue_add.find_need(config, devices, queue_add.parse_memory(memory) if memory else None)
    entry = Entry(
        number=0,
        key="",
        name=queue_add.name_of(config, need),
        kind="train" if queue_add.is_training(config) else "script",
        command=[*words] if words[0] in queue_add.COMMANDS else ["train", *words],
        folder=str(Path.cwd()),
        runs=str(run_dir.runs_folder(runs)),
        python=sys.executable,
        need=need,
        added_at=time.time(),
        position=0.0,
        commit=git_commit(queue_add.folder_of(config), reads_files=True),
        priority=priority,
        not_before=queue_add.parse_time(not_before, datetime.now()) if not_before else 0.0,
        after=[spool.find(text).number for text in after or ()],
        retries=retry,
        is_held=is_held,
    )
    entry = spool.add(entry, config.to_toml(), os.environ)
    ensure_dispatcher(spool)
    if as_json:
        console.print_json(_facts(entry))
    else:
        typer.echo(entry.number)
        console.err().print(f"added as entry {entry.number}: {entry.name}", soft_wrap=True)
    return 0


@app.command(name="list")
def list_entries(
    everything: Annotated[bool, typer.Option("--all", help="Include entries that have ended.")] = False,
    as_json: AsJson = False,
) -> int:
    """List the entries that run or wait."""
    from rankdeck.queue.spool import Spool

    spool = Spool()
    entries = [entry for entry in spool.entries() if everything or not entry.is_finished]
    entries.sort(key=_listing_order)
    if as_json:
        console.print_json([_facts(entry) for entry in entries])
        return 0
    if spool.is_paused:
        console.err().print("The queue is paused. Resume it with: rankdeck queue resume")
    if not entries:
        console.err().print("The queue is empty. Add a run with: rankdeck queue add digits-mlp")
        return 0
    for line in _table_lines(entries):
        typer.echo(line)
    return 0


def _listing_order(entry: Entry) -> tuple[bool, int, float]:
    return not entry.is_running, -entry.priority, entry.position


def _table_lines(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the lines of the table. Not a rich table, which takes a second for 1,000 entries."""
    rows = [("Entry", "State", "Name", "Devices", "Priority", "Details")]
    for entry in entries:
        need = _need_text(entry.need)
        rows.append(
            (str(entry.number), entry.state, entry.name, need, str(entry.priority or ""), _details(entry))
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def _need_text(need: Need) -> str:
    if need.kind == "cpu":
        return f"cpu:{need.num_devices}"
    text = f"gpu:{','.join(need.gpus)}" if need.gpus else f"{need.num_devices or 'free'} GPU"
    return f"{text}, {format_bytes(need.free_bytes)}" if need.free_bytes else text


def _details(entry: Entry) -> str:
    start = entry.last_start
    if entry.is_running and start is not None:
        return Path(start.run).name if start.run else "starting"
    if start is not None and entry.is_finished:
        return start.error.splitlines()[-1] if start.error else Path(start.run).name
    return entry.waits_for


def _facts(entry: Entry) -> dict[str, Any]:
    """Return the entry as `--json` prints it."""
    import msgspec

    facts: dict[str, Any] = msgspec.structs.asdict(entry)
    facts |= {
        "command": mask_arguments(entry.command),
        "need": msgspec.structs.asdict(entry.need),
        "starts": [msgspec.structs.asdict(start) for start in entry.starts],
    }
    return {**facts, "state": entry.state}


@app.command()
def show(name: EntryName, as_json: AsJson = False) -> int:
    """Show one entry: what it runs, what it waits for, its starts."""
    from rankdeck.queue.spool import Spool

    entry = Spool().find(name)
    if as_json:
        console.print_json(_facts(entry))
        return 0
    out = console.out()
    rows = [
        ("entry", f"{entry.number}, {entry.state}"),
        ("name", entry.name),
        ("command", shlex.join(mask_arguments(entry.command))),
        ("folder", entry.folder),
        ("devices", _need_text(entry.need)),
        ("added", _format_time(entry.added_at)),
        ("waits for", entry.waits_for),
    ]
    for number, start in enumerate(entry.starts, 1):
        what = start.outcome or "running"
        rows.append((f"start {number}", f"{_format_time(start.at)}, {what} {Path(start.run).name}".rstrip()))
        rows += [("", line) for line in start.error.splitlines()]
    for label, text in rows:
        if text:
            out.print(f"{label:10} {text}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _format_time(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))


@app.command()
def move(
    name: EntryName,
    first: Annotated[bool, typer.Option("--first", help="Move it before all others.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Move it behind all others.")] = False,
    before: Annotated[str | None, typer.Option(metavar="ENTRY", help="Move it before this entry.")] = None,
    priority: Annotated[int | None, typer.Option(help="Change its priority.")] = None,
    as_json: AsJson = False,
) -> int:
    """Move an entry, or change its priority."""
    from rankdeck.queue.spool import Spool

    if sum([first, last, before is not None]) > 1 or not (first or last or before or priority is not None):
        raise ConfigError(
            phrase("Say where to move the entry."),
            code="usage",
            advice=phrase("Use one of --first, --last and --before ENTRY, or --priority N."),
        )
    spool = Spool()
    others = [other for other in spool.entries() if other.number != spool.find(name).number]
    positions = sorted(other.position for other in others) or [0.0]
    target = None if before is None else spool.find(before)

    def change(entry: Entry) -> None:
        if priority is not None:
            entry.priority = priority
        if first:
            entry.position = positions[0] - 1
        elif last:
            entry.position = positions[-1] + 1
        elif target is not None:
            lower = max((p for p in positions if p < target.position), default=target.position - 2)
            entry.position, entry.priority = (lower + target.position) / 2, target.priority

    return _change(spool, name, change, as_json=as_json)


@app.command(name="hold")
def hold_entry(name: EntryName, as_json: AsJson = False) -> int:
    """Keep an entry from starting."""
    from rankdeck.queue.spool import Spool

    def change(entry: Entry) -> None:
        entry.is_held = True

    return _change(Spool(), name, change, as_json=as_json)


@app.command()
def release(name: EntryName, as_json: AsJson = False) -> int:
    """Let a held entry start."""
    from rankdeck.queue.spool import Spool

    def change(entry: Entry) -> None:
        entry.is_held = False

    return _change(Spool(), name, change, as_json=as_json)


@app.command()
def remove(name: EntryName, as_json: AsJson = False) -> int:
    """Remove an entry that is not running."""
    from rankdeck.queue.spool import Spool

    def change(entry: Entry) -> None:
        start = entry.last_start
        if entry.is_running and start is not None:
            run = Path(start.run).name
            raise RankdeckError(
                phrase("Entry {number} is running.", number=entry.number),
                code="running",
                advice=phrase("Stop its run with: rankdeck stop {run}", run=run) if run else "",
            )
        entry.is_removed, entry.waits_for = True, ""

    return _change(Spool(), name, change, as_json=as_json)


def _change(spool: Spool, name: str, change: Callable[[Entry], None], *, as_json: bool) -> int:
    from rankdeck.queue.dispatcher import ensure_dispatcher

    entry = spool.update(spool.find(name).number, change)
    ensure_dispatcher(spool)
    if as_json:
        console.print_json(_facts(entry))
    else:
        console.err().print(f"entry {entry.number} ({entry.name}): {entry.state}", soft_wrap=True)
    return 0


@app.command()
def pause() -> int:
    """Start no further entries until the queue is resumed."""
    from rankdeck.queue.spool import Spool

    Spool().set_paused(True)
    console.err().print("The queue is paused. Runs that have started continue.")
    return 0


@app.command()
def resume() -> int:
    """Start entries again after a pause."""
    from rankdeck.queue.dispatcher import ensure_dispatcher
    from rankdeck.queue.spool import Spool

    spool = Spool()
    spool.set_paused(False)
    ensure_dispatcher(spool)
    console.err().print("The queue is no longer paused.")
    return 0


@app.command()
def wait(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ENTRY]...", help="Entries. Default: all that are not held."),
    ] = None,
) -> int:
    """Wait until entries have ended.

    The exit status is that of the first entry that did not complete: its run's exit status, 1 if it has none.
    An entry that cannot start because one before it failed does not complete.
    """
    from rankdeck.cli.wait import exit_status
    from rankdeck.queue.dispatcher import ensure_dispatcher, has_work
    from rankdeck.queue.spool import Spool
    from rankdeck.run_dir import RunDir

    spool = Spool()
    waited_for = [e.number for e in spool.entries() if not (e.is_finished or e.is_held)]
    numbers = [spool.find(name).number for name in names] if names else waited_for
    ensure_dispatcher(spool)
    status = 0
    for number in numbers:
        while (entry := spool.entry(number)) is not None and not _is_over(spool, entry):
            time.sleep(_WAIT_INTERVAL_S)
            # The dispatcher may have been killed. Without work, as in a paused queue, it would end at once.
            if has_work(spool):
                ensure_dispatcher(spool)
        if entry is not None and entry.state != "completed" and not status:
            start = entry.last_start
            status = exit_status(RunDir(Path(start.run))) if start is not None and start.run else 1
    return status


def _is_over(spool: Spool, entry: Entry) -> bool:
    """Check whether the entry has ended, or cannot start because an entry that it follows failed."""
    from rankdeck.queue.admission import failed_predecessor

    followed = {number: found for number in entry.after if (found := spool.entry(number)) is not None}
    return entry.is_finished or failed_predecessor(entry, followed) is not None


# Started by the queue itself.


@app.command(hidden=True)
def dispatch() -> int:
    """Start entries until none waits."""
    from rankdeck.queue.dispatcher import run_dispatcher
    from rankdeck.queue.spool import Spool

    return run_dispatcher(Spool())


@app.command(hidden=True)
def start(number: int) -> int:
    """Start an entry's run; the dispatcher has recorded the start."""
    from rankdeck.cli.wait import command_start_time
    from rankdeck.launch.queued_start import start_queued
    from rankdeck.queue.spool import Spool

    return start_queued(Spool(), number, command_start_time())
