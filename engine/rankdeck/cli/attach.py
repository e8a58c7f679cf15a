"""Commands for an existing run or race (watch, stop, stacks, label, copy), and install."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.base.errors import ConfigError, MachineError
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.cli import console, remote_command
from rankdeck.cli.options import AsJson, RunName, RunOrRaceName, find_race, find_run
from rankdeck.diagnose.child_processes import CHILD, LOADER_WORKER
from rankdeck.diagnose.stacks import format_location

if TYPE_CHECKING:
    from rankdeck.launch.stacks import ChildStack, RankStack
    from rankdeck.run_dir import RaceDir


STOP_TIMEOUT_S = 30.0


def watch(name: RunName, as_json: AsJson = False) -> int:
    """Follow a run live, or show how it went.

    Ctrl-C ends the view, never the run.
    """
    from rankdeck.cli.display import JsonDisplay
    from rankdeck.cli.follow import choose_display, follow
    from rankdeck.cli.summary import print_summary
    from rankdeck.run.summary_builder import summarize

    run = find_run(name)
    state = follow(run, JsonDisplay() if as_json else choose_display(run))
    if not as_json:
        print_summary(summarize(run, state), shown_problems=state.problems)
    return 0


def stop(
    name: RunOrRaceName,
    now: Annotated[bool, typer.Option("--now", help="Stop at once, without finishing the step.")] = False,
    as_json: AsJson = False,
) -> int:
    """Stop a run or a race."""
    from rankdeck.cli import foreground
    from rankdeck.launch.control import request_stop, wait_for_end
    from rankdeck.run.problems import read_script_config

    race = find_race(name)
    if race is not None:
        return _stop_race(race, as_json)
    run = find_run(name)
    outcome = run.outcome()
    # Not an error: the run has ended already, which is what the command asks for.
    if outcome != "running":
        return _not_running(run.name, outcome, as_json)
    request_stop(run, now=now)
    # A script may take 30 s to exit by itself before it is killed.
    timeout_s = STOP_TIMEOUT_S if read_script_config(run) is None else foreground.SCRIPT_STOP_TIMEOUT_S
    if not wait_for_end(run, timeout_s):
        raise MachineError(
            phrase("{run} did not stop within {timeout_s:.0f} s.", run=run.name, timeout_s=timeout_s),
            code="not-stopped",
            advice=phrase("Try: rankdeck stop {run} --now", run=run.name),
        )
    return _print_outcome(run.name, run.outcome(), as_json)


def _print_outcome(name: str, outcome: str, as_json: bool) -> int:
    if as_json:
        console.print_json({"run": name, "outcome": outcome})
    else:
        console.out().print(f"{name}: {outcome}")
    return 0


def _not_running(name: str, outcome: str, as_json: bool) -> int:
    if as_json:
        return _print_outcome(name, outcome, as_json)
    console.err().print(f"{name} is not running: {outcome}.")
    return 0


def _stop_race(race: RaceDir, as_json: bool) -> int:
    from rankdeck.cli.race import stop_race
    from rankdeck.run.race import read_race

    if not race.is_alive():
        race_file = read_race(race)
        return _not_running(race.name, "lost" if race_file is None else race_file.outcome, as_json)
    if not stop_race(race, timeout_s=STOP_TIMEOUT_S):
        raise MachineError(
            phrase("{race} did not stop within {timeout_s:.0f} s.", race=race.name, timeout_s=STOP_TIMEOUT_S),
            code="not-stopped",
            advice=phrase("To kill the race's process, use the process ID in {file}.", file=race.lock),
        )
    race_file = read_race(race)
    return _print_outcome(race.name, "stopped" if race_file is None else race_file.outcome, as_json)


# `rankdeck stacks`: the line of code that every rank of a running run executes. Asking delays no step.

_REASON_TEXTS = {
    "suspended": phrase("suspended by a signal (SIGSTOP)"),
    "debugger": phrase("a debugger is attached"),
    "ended": phrase("its process has ended"),
    "unheard": phrase("it has no signal handler installed"),
}
_NO_ANSWER_TEXT = phrase("it did not respond")
_CHILD_TEXTS = {
    (LOADER_WORKER, True, False): tr_noop("rank {rank}, loader worker {numbers} ({pids}): {place}"),
    (LOADER_WORKER, True, True): tr_noop("rank {rank}, loader workers {numbers} ({pids}): {place}"),
    (LOADER_WORKER, False, False): tr_noop("loader worker {numbers} ({pids}): {place}"),
    (LOADER_WORKER, False, True): tr_noop("loader workers {numbers} ({pids}): {place}"),
    (CHILD, True, False): tr_noop("rank {rank}, child process ({pids}): {place}"),
    (CHILD, True, True): tr_noop("rank {rank}, child processes ({pids}): {place}"),
    (CHILD, False, False): tr_noop("process ({pids}): {place}"),
    (CHILD, False, True): tr_noop("processes ({pids}): {place}"),
}
"""Templates by (role, whether the rank is known, whether there are several processes)."""


def stacks(
    name: RunName,
    threads: Annotated[
        bool, typer.Option("--all", help="Show all threads, as faulthandler prints them.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show the line of code that each rank is executing.

    Prints the line of your own code first, and the collective that the rank is waiting in. For a script, also
    prints a line for each loader worker and each other Python process.
    """
    from rankdeck.launch.control import NotRunningError
    from rankdeck.launch.stacks import read_all_stacks

    run = find_run(name)
    if not run.is_alive():
        raise NotRunningError(phrase("{run} is not running: {outcome}.", run=run.name, outcome=run.outcome()))
    rank_stacks, children = read_all_stacks(run)
    if not rank_stacks and not children:
        raise MachineError(
            phrase("No rank of {run} has started yet.", run=run.name),
            code="no-ranks",
            advice=phrase("Try again in a moment."),
        )
    if as_json:
        console.print_json(
            {
                "run": run.name,
                "ranks": [_stack_to_json(stack) for stack in rank_stacks],
                "processes": [_child_to_json(stack) for stack in children],
            }
        )
        return 0
    for stack in rank_stacks:
        console.out().print(f"rank {stack.rank} ({stack.pid}): {_stack_text(stack)}", soft_wrap=True)
        if threads:
            console.out().print(stack.report.text, soft_wrap=True)
            continue
        for frame in stack.report.frames:
            console.out().print(f"    {frame.text()}", soft_wrap=True)
    for group in _group_children(children, alone=threads):
        console.out().print(str(_children_text(group)), soft_wrap=True)
        if threads:
            console.out().print(group[0].report.text, soft_wrap=True)
    return 0


def _stack_text(stack: RankStack) -> Phrase:
    if not stack.report.frames:
        return _REASON_TEXTS.get(stack.skip_reason or "", _NO_ANSWER_TEXT)
    call = stack.report.call
    if call is None:
        return format_location(stack.report.frames)
    return phrase("{place}: {call}", place=format_location(stack.report.frames), call=call.text())


def _stack_to_json(stack: RankStack) -> dict[str, object]:
    call = stack.report.call
    return {
        "rank": stack.rank,
        "pid": stack.pid,
        "why": stack.skip_reason if stack.report.frames or stack.skip_reason else "silent",
        "frames": list(map(vars, stack.report.frames)),
        "collective": call
        and {"group": call.group, "number": call.number, "kind": call.kind, "shape": call.shape},
        "text": stack.report.text,
    }


def _group_children(children: list[ChildStack], *, alone: bool) -> list[list[ChildStack]]:
    """Return the children in groups that print the same text; if `alone` is True, each child is its own
    group."""
    groups: dict[tuple[object, ...], list[ChildStack]] = {}
    for stack in children:
        child = stack.process
        key = child.rank, child.role, str(_child_location(stack)), child.pid if alone else None
        groups.setdefault(key, []).append(stack)
    return list(groups.values())


def _children_text(group: list[ChildStack]) -> Phrase:
    """Return a line such as 'rank 0, loader workers 0, 1 (4711, 4712): pack (train.py, line 20)'."""
    first = group[0].process
    template = _CHILD_TEXTS[first.role, first.rank is not None, len(group) > 1]
    return phrase(
        template,
        rank=first.rank,
        numbers=", ".join(str(stack.process.number) for stack in group),
        pids=", ".join(str(stack.process.pid) for stack in group),
        place=_child_location(group[0]),
    )


def _child_location(stack: ChildStack) -> Phrase:
    if not stack.process.frames:
        return _REASON_TEXTS.get(stack.skip_reason or "", _NO_ANSWER_TEXT)
    return stack.process.location()


def _child_to_json(stack: ChildStack) -> dict[str, object]:
    child = stack.process
    return {
        "rank": child.rank,
        "pid": child.pid,
        "role": child.role,
        "number": child.number,
        "why": stack.skip_reason if child.frames or stack.skip_reason else "silent",
        "frames": list(map(vars, child.frames)),
        "text": stack.report.text,
    }


# `rankdeck label`: a user's title, tags and note of a run or race. The run's own files do not change.


def label(
    name: RunOrRaceName,
    title: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help='New name; "" restores the original one.')
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="Add a tag.")] = None,
    untag: Annotated[list[str] | None, typer.Option("--untag", metavar="TEXT", help="Remove a tag.")] = None,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help='Replace the note; "" removes it.')
    ] = None,
    archive: Annotated[
        bool | None, typer.Option("--archive/--unarchive", help="Hide the run from lists.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Rename, tag, annotate or archive a run or a race.

    Its folder is not moved.
    """
    from rankdeck.run.race_row import race_info
    from rankdeck.run_dir import RunDir, add_to_index, read_labels, write_labels

    race = find_race(name)
    run = find_run(name) if race is None else RunDir(race.path)
    before = read_labels(run.path)
    if not all(tag_text.strip() for tag_text in tag or ()):
        raise ConfigError(phrase("A tag must not be empty."), advice=phrase("For example: --tag baseline"))
    tags = [tag_text for tag_text in (*before.tags, *(tag or ())) if tag_text not in (untag or ())]
    after = before.with_changes(
        name=before.name if title is None else title,
        tags=tuple(tags),
        note=before.note if note is None else note,
        is_archived=before.is_archived if archive is None else archive,
    )
    # Unchanged labels are not written, so that nothing rescans the index for them.
    if after != before:
        write_labels(run.path, after)
        add_to_index(run)  # makes watchers of the index rescan
    called = run.title if race is None else race_info(race).title
    if as_json:
        label_fields = {
            "title": called,
            "tags": after.tags,
            "note": after.note,
            "archived": after.is_archived,
        }
        console.print_json({"run": run.name, **label_fields})
        return 0
    tagged = "".join(f"  #{tag_text}" for tag_text in after.tags)
    put_away = "  (archived)" if after.is_archived else ""
    console.out().print(f"{called}{tagged}{put_away}", soft_wrap=True)
    if after.note:
        console.out().print(after.note, soft_wrap=True)
    return 0


# `rankdeck copy`: copy another host's run, to be read like any local run; and `rankdeck install`.


def copy(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="With --host, a run on that host; otherwise, a local copy to update."
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Keep copying until the run has ended.")] = False,
    as_json: AsJson = False,
) -> int:
    """Copy a run from another host (with --host).

    Repeat the command to update the copy.
    """
    from rankdeck.run_dir import RunDir

    origin = RunDir(path).origin
    if origin is None:
        raise ConfigError(
            phrase("{path} is not a copy of another host's run.", path=path),
            code="no-copy",
            advice=phrase("To copy a run from another host, use for example: rankdeck --host NAME copy last"),
        )
    return remote_command.copy_run(origin.host, origin.path, follow=follow, as_json=as_json)


# The parameters serve the help alone: with --host, remote_command.py handles the command before click does.
def install(
    more: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments for pip.")] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="Python of an existing environment on that host.")
    ] = None,
) -> None:
    """Install Rankdeck on another host (with --host)."""
    raise ConfigError(
        phrase("rankdeck install needs a host, but none is specified."),
        code="no-host",
        advice=phrase("For example: rankdeck --host NAME install"),
    )
