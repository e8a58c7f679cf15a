"""Register the commands, and turn their errors into messages and exit codes.

Exit codes: 0 success, 1 the run failed, 2 bad input, 3 the machine lacks something, 130 interrupted.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from rankdeck import __version__, debug_log
from rankdeck.base.errors import ConfigError, Problem, RankdeckError
from rankdeck.base.phrases import phrase
from rankdeck.cli import (
    attach,
    catalog,
    compare,
    console,
    devices,
    doctor,
    plan,
    queue,
    race,
    reference,
    remote_command,
    results,
    serve,
    train,
    why,
)
from rankdeck.cli import run as script_run
from rankdeck.cli.torchrun import ScriptCommand, split_script_arguments
from rankdeck.cli.wait import EXIT_INTERRUPTED

HELP_OPTIONS = ["-h", "--help"]
EXIT_BROKEN_PIPE = 141  # what a shell reports for a command that SIGPIPE ended

app = typer.Typer(
    name="rankdeck",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_OPTIONS},
)

for _group, _commands in {
    "Runs": (
        train.train,
        script_run.run,
        train.resume,
        attach.watch,
        attach.stop,
        attach.stacks,
        train.checkpoint,
        results.runs,
        results.show,
        why.why,
        compare.compare,
        compare.report,
        attach.label,
        results.export,
        catalog.adopt,
    ),
    "Before a run": (plan.plan, train.verify, race.race, doctor.doctor),
    "Reference": (
        devices.devices,
        catalog.strategies,
        catalog.presets,
        reference.config,
        catalog.validate,
    ),
    "Other hosts": (attach.copy, attach.install, serve.serve),
}.items():
    for _command in _commands:
        # Only `run` needs a parser of its own: its command line mixes torchrun's options with a script's
        # arguments.
        _kind = ScriptCommand if _command is script_run.run else None
        app.command(rich_help_panel=_group, cls=_kind)(_command)


app.add_typer(queue.app, name="queue", rich_help_panel="Runs")

# Hidden: `doctor --hosts` starts it on the other hosts.
app.command(hidden=True)(serve.meet)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"rankdeck {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("-C", metavar="FOLDER", help="Run the command in this folder.", show_default=False),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Run the command on this host (a name that ssh knows).", show_default=False
        ),
    ] = None,
    log_level: Annotated[
        debug_log.LogLevel | None,
        typer.Option(help="Log what Rankdeck's own processes do.", show_default=False, case_sensitive=False),
    ] = None,
) -> None:
    """Train on several GPUs or virtual devices, and see what each parallel strategy costs."""
    if host is not None:  # remote_command.py handles every valid --host before
        raise ConfigError(
            phrase("{host} is not a host name.", host=repr(host)),
            code="no-host",
            advice=phrase("For example: rankdeck --host NAME devices"),
        )
    if log_level is not None:
        os.environ[debug_log.LOG_ENV] = log_level.value
    debug_log.enable()
    if folder is not None:
        os.chdir(folder)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _build_command() -> Any:
    """Return the click command. Flags get an empty metavar; otherwise, typer's help would print <bool> next
    to each flag."""
    command_group: Any = typer.main.get_command(app)
    queue_group = command_group.commands["queue"]
    for command in (command_group, *command_group.commands.values(), *queue_group.commands.values()):
        context = typer.Context(command, help_option_names=HELP_OPTIONS)
        for option in command.get_params(context):
            if getattr(option, "is_flag", False):
                option.metavar = option.metavar or ""
    return command_group


# Built once: building the commands anew was half of a call in the fuzz test (31 of 73 ms).
COMMAND = _build_command()


def run(argv: Sequence[str]) -> int:
    """Run `rankdeck ARGV` and return its exit code; errors that a user can cause are printed as problems."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for characters that its encoding lacks
    try:
        code = _invoke(argv)
        # Flushed here, because a broken pipe at the interpreter's exit would print a message and change the
        # exit code.
        sys.stdout.flush()
    except BrokenPipeError:
        console.discard_output(sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return code


def _invoke(argv: Sequence[str]) -> int:
    from rankdeck.launch.machine import check_proc

    # Found without click, because click's own usage errors must be printed as JSON too.
    as_json = "--json" in _rankdeck_arguments(argv)
    try:
        check_proc()
        elsewhere = remote_command.split_host_option(argv) or remote_command.redirect_copy(argv)
        if elsewhere is not None and not _is_install_help(elsewhere[2]):
            return remote_command.run_on_host(*elsewhere)
        argv = argv if elsewhere is None else elsewhere[2]
        code = COMMAND.main(args=list(argv), prog_name="rankdeck", standalone_mode=False)
    except RankdeckError as error:
        _print_problems(error.problems, as_json, error.file)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except SystemExit:
        raise BrokenPipeError from None  # typer exits by itself for EPIPE only
    except BrokenPipeError:
        raise
    except OSError as error:
        _print_problems([_os_error_problem(error)], as_json)
        return 3
    except Exception as error:
        usage = _usage_problem(error)
        if usage is None:
            raise
        _print_problems([usage], as_json)
        return 2
    return code if isinstance(code, int) else 0


def _is_install_help(arguments: Sequence[str]) -> bool:
    """Return whether the arguments ask for help on `install`.

    That help is printed locally, because the host may lack rankdeck.
    """
    return arguments[0] == "install" and not set(HELP_OPTIONS).isdisjoint(arguments)


def _rankdeck_arguments(argv: Sequence[str]) -> Sequence[str]:
    """Return the arguments without those of a user's script, which may have a --json of its own."""
    if argv and argv[0].startswith("-C"):
        argv = argv[2:] if argv[0] == "-C" else argv[1:]
    if argv and argv[0] == "queue":  # a script's command follows two dashes
        return argv[: argv.index("--")] if "--" in argv else argv
    named = COMMAND.commands.get(argv[0]) if argv else None
    return (
        split_script_arguments(argv[1:], named.value_options())[0]
        if isinstance(named, ScriptCommand)
        else argv
    )


def _print_problems(problems: Sequence[Problem], as_json: bool, file: str | None = None) -> None:
    """Print problems as text, or as JSON if that is requested and stdout can be written to."""
    if as_json:
        try:
            # If stdout cannot be written, as on a full disk, the problems are printed as text on stderr.
            console.print_problems_json(problems)
            return
        except BrokenPipeError:
            raise
        except OSError:
            console.discard_output(sys.stdout.fileno())
    for problem in problems:
        console.print_problem(problem, file)


def _os_error_problem(error: OSError) -> Problem:
    """Return a problem for an OSError that no command has caught and explained."""
    why = error.strerror or error
    if not error.filename:
        return Problem("system", phrase("{why}.", why=why))
    return Problem(
        "system",
        phrase("{file}: {why}.", file=error.filename, why=why),
        path=str(error.filename),
    )


def _usage_problem(error: Exception) -> Problem | None:
    """Return the problem for a usage error raised by typer; None for any other error.

    Newer versions of typer include their own copy of click, so a usage error is recognized by its methods.
    """
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    unknown = str(getattr(error, "option_name", ""))
    if (possible := getattr(error, "possibilities", None)) is not None:
        # Compare without dashes: all options start with them, so unrelated ones would count as similar.
        names = {name.strip("-"): name for name in possible}
        close = difflib.get_close_matches(unknown.strip("-"), names)
        error.possibilities = [names[name] for name in close]  # type: ignore[attr-defined]
    hidden = {name for name, command in COMMAND.commands.items() if command.hidden}
    # click has two forms of suggestions; both become the part after "Did you mean".
    message, _, hint = re.sub(
        r" \(Possible options: (.*)\)",
        r" Did you mean \1?",
        str(format_message()).replace("Value error, ", ""),
    ).partition(" Did you mean ")
    # Never suggest a hidden command.
    if hidden.intersection(re.findall(r"'([\w-]+)'", hint)):
        hint = ""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "rankdeck"
    if hint:
        advice = phrase("Did you mean {options} See {command} --help.", options=hint, command=path)
    else:
        advice = phrase("See {command} --help.", command=path)
    return Problem("usage", message, advice=advice)
