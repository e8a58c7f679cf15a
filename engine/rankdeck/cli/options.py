"""Arguments shared by several commands, and their conversion to a configuration, run or race."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from rankdeck.base import files
from rankdeck.base.errors import ConfigError, RunNotFoundError, did_you_mean, format_choices
from rankdeck.base.home import expand_home
from rankdeck.base.phrases import phrase

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.config.loading import ConfigChanges
    from rankdeck.run_dir import RaceDir, RunDir

ConfigName = Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file, or the name of a preset.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help='Directory or name of a run, or "last".')]
RunOrRaceName = Annotated[
    str, typer.Argument(metavar="RUN", help='Directory or name of a run or a race, or "last".')
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, as in --set train.steps=50."),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Return once the run or race has started, and leave it running.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print results and problems as JSON.")]


def load_config(text: str, *, to_plan: bool = False, **changes: Unpack[ConfigChanges]) -> RunConfig:
    """Load the configuration named by `text`, the CONFIG argument of a command.

    A preset's relative paths are resolved against the current folder. For `to_plan`, see
    config.loading.from_text.

    Raises:
        ConfigError: CONFIG is neither a file nor a preset, or the configuration is invalid.
    """
    from rankdeck.config import load

    path = expand_home(text)
    folder = None
    if not files.is_regular(path):
        path, folder = _find_preset(text, path), Path.cwd()
    return load(path, folder=folder, to_plan=to_plan, **changes)


def _find_preset(text: str, path: Path) -> Path:
    from rankdeck.config import presets

    if text and files.is_folder(path):
        raise ConfigError(
            phrase("{text} is a folder.", text=text),
            code="unreadable",
            path=text,
            advice=phrase("Specify the TOML file inside the folder."),
        )
    if (preset := presets.find_preset(text)) is not None:
        return preset
    names = [card.name for card in presets.list_presets()]
    siblings = _sibling_configs(path)
    advice = did_you_mean(text, [*names, *siblings]) or phrase(
        "Presets: {names}.", names=format_choices(names)
    )
    raise ConfigError(
        phrase('There is neither a file nor a preset called "{text}".', text=text),
        code="unknown-config",
        path=text,
        advice=advice,
    )


def _sibling_configs(path: Path) -> list[str]:
    """Return the paths of the TOML files in the folder of `path`, relative if `path` is relative."""
    try:
        # Limited, because the suggestion compares the text with each of these names.
        return [str(path.with_name(file.name)) for file in path.parent.glob("*.toml")][:1000]
    # CONFIG may not be a valid path at all: it may be too long, for example.
    except (OSError, ValueError):
        return []


def is_script_run(run: RunDir) -> bool:
    """Return whether a run's files show that it is the run of a user's script."""
    from rankdeck.run.problems import read_script_config

    return read_script_config(run) is not None


def find_run(text: str) -> RunDir:
    """Return the run named by `text`, the RUN argument of a command.

    Raises:
        RunNotFoundError: no run or more than one run matches, or RUN names a race.
    """
    from rankdeck import run_dir

    folder = run_dir.default_runs_folder()
    try:
        return run_dir.find_run(text, folder)
    except RunNotFoundError as error:
        # Another code is an error of its own: a name that fits several runs does not mean a race.
        race = run_dir.find_race(text, folder) if error.code == RunNotFoundError.code else None
        if race is None:
            if (run := _newest_run_of_preset(text)) is not None:
                return run
            raise
        raise RunNotFoundError(
            phrase("{race} is a race, not a run.", race=race.name),
            code="race",
            advice=phrase(
                "Its runs are in {folder}. Show the race with: rankdeck show {race}",
                folder=race.entries_folder,
                race=race.name,
            ),
        ) from None


def _newest_run_of_preset(text: str) -> RunDir | None:
    """Return the newest run whose command line contains this preset's name. The command line is searched
    because a run is named after what it trains, not after its preset."""
    from rankdeck import run_dir
    from rankdeck.config import presets

    if presets.find_preset(text) is None:
        return None
    runs = run_dir.list_runs(run_dir.default_runs_folder())
    return next((run for run in runs if text in run.environment().get("command_line", [])), None)


def find_race(text: str) -> RaceDir | None:
    """Return the race with this name, unless a run has the same name; for "last", the newest race if it is
    newer than all runs."""
    from rankdeck import run_dir

    folder = run_dir.default_runs_folder()
    if text == "last":
        races, runs = run_dir.list_races(folder), run_dir.list_runs(folder)
        # Names of run directories start with their date and time, so a later name is a newer run.
        return races[0] if races and (not runs or runs[0].name < races[0].name) else None
    try:
        run_dir.find_run(text, folder)
    except RunNotFoundError as error:
        return run_dir.find_race(text, folder) if error.code == RunNotFoundError.code else None
    return None


def check_output_file(file: Path) -> None:
    """Check that a file can be written at this path. Call this before computing the file's contents, so that
    an error is reported at once.

    Raises:
        ConfigError: the path is "-" or exists but is not a regular file, or its folder does not exist.
    """
    if str(file) == "-":
        raise ConfigError(
            phrase("This output cannot be written to stdout (-)."),
            code="no-file",
            advice=phrase("Choose a file. If its name is really -, write ./- instead."),
        )
    if file.exists() and not file.is_file():
        raise ConfigError(
            phrase("{file} is a folder.", file=file)
            if file.is_dir()
            else phrase("{file} is not a regular file.", file=file),
            code="no-file",
            path=str(file),
            advice=phrase("Choose another file."),
        )
    if file.name and not file.parent.is_dir():
        raise ConfigError(
            phrase("The folder {folder} does not exist.", folder=file.parent),
            code="no-folder",
            path=str(file),
            advice=phrase("Create the folder first, or choose another file."),
        )
