"""Whoever reads a run, in this process: functions of the engine as the app calls them, and commands."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path

from rankdeck import rundir
from rankdeck.base.errors import RankdeckError
from rankdeck.checkpoint_files import list_checkpoints, newest_whole
from rankdeck.diagnose.exceptions import read_last_lines
from rankdeck.diagnose.fixes import kept_lines, planned_fixes
from rankdeck.diagnose.out_of_memory import ran_out_of
from rankdeck.run import export
from rankdeck.run.fold import Fold, read_fold
from rankdeck.run.past import stretches
from rankdeck.run.prediction import read_prediction
from rankdeck.run.race import read_race
from rankdeck.run.race_row import race_info
from rankdeck.run.row import read_info, row_of
from rankdeck.run.row_figures import figures_of
from rankdeck.run.row_index import RunRows
from rankdeck.run.summarising import summarise
from rankdeck.rundir import EventReader, RaceDir, RunDir
from tests.helpers.cli import rankdeck_here

Reader = Callable[[RunDir], object]


def _fold(run: RunDir) -> None:
    fold = read_fold(run)
    read_fold(run, attempt=0, rows_held=5)
    _look_at(fold)
    figures_of(fold)
    ran_out_of(run, fold)
    json.dumps(summarise(run, fold).facts(), allow_nan=False)
    json.dumps(summarise(run, attempt=0).facts(), allow_nan=False)


def _look_at(fold: Fold) -> None:
    """What the app draws."""
    curves = [fold.losses, fold.loss_ema, fold.rates, fold.lrs, fold.grad_norms, fold.held_out, fold.moments]
    for curve in (*curves, *(metric.curve for metric in fold.metrics.values())):
        curve.window(-math.inf, math.inf, 100)
        curve.window(-10.0, 1e6, 100)
    stretches(fold)
    fold.copy()
    assert fold.num_events >= 0 and list(fold.rows()) is not None


def _lists(run: RunDir) -> None:
    for found in rundir.list_runs(run.path.parent):
        assert found.title and found.outcome()
    for race in rundir.list_races(run.path.parent):
        json.dumps(row_of(race_info(race)), allow_nan=False)
    json.dumps(row_of(read_info(run)), allow_nan=False)


def _kept_rows(run: RunDir) -> None:
    for _ in range(2):
        rows = RunRows()
        rows.info(run)
        rows.save()


def _events(run: RunDir) -> None:
    reader = EventReader(run)
    while reader.read(1 << 20):
        pass
    assert min(reader.counts()) >= 0


def _checkpoints(run: RunDir) -> None:
    for checkpoint in list_checkpoints(run.checkpoints_folder):
        assert checkpoint.step >= 0
    newest_whole(run.checkpoints_folder)


def _configuration(run: RunDir) -> None:
    for read in (run.config, run.script):
        with contextlib.suppress(RankdeckError):
            read()
    assert run.environment() is not None and run.next_attempt() > 0 and run.config_to_go_on_with


def _race(run: RunDir) -> None:
    read_race(RaceDir(run.path))
    assert RaceDir(run.path).title is not None


def _predictions(run: RunDir) -> None:
    read_prediction(run)
    for fix in planned_fixes(kept_lines(run) or ()):
        assert fix.text and fix.headroom


def _rest(run: RunDir) -> None:
    for log in ("rank-0.0.err", "supervisor.0.err", "rank-0.0.out"):
        read_last_lines(run.logs_folder / log)


def _csv(run: RunDir) -> None:
    export.steps_csv(run, run.path.parent.parent / "out.csv")


def _json(run: RunDir) -> None:
    export.everything_json(run, run.path.parent.parent / "out.json")


def _trace(run: RunDir) -> None:
    export.trace(run, run.path.parent.parent / "out.trace")


def _tensorboard(run: RunDir) -> None:
    export.tensorboard(run, run.path.parent.parent / "out.tfevents")


def _weights(run: RunDir) -> None:
    export.is_behind(run)
    export.weights(run, run.path.parent.parent / "out.safetensors")


READERS: tuple[Reader, ...] = (
    _lists,
    _kept_rows,
    _events,
    _fold,
    _checkpoints,
    _configuration,
    _race,
    _predictions,
    _rest,
    _csv,
    _json,
    _trace,
    _tensorboard,
    _weights,
)

RUN, OTHER, FILE = "RUN", "OTHER", "FILE"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("show", RUN),
    ("show", RUN, "--json"),
    ("show", RUN, "--attempt", "0"),
    ("runs", "--all"),
    ("runs", "--json"),
    ("watch", RUN),
    ("watch", RUN, "--json"),
    ("compare", RUN, OTHER),
    ("compare", RUN, OTHER, "--by", "time", "--html", FILE),
    ("compare", RUN + "@0", OTHER, "--json"),
    ("report", RUN, "--html", FILE, "--no-plan"),
    ("label", RUN, "--tag", "x", "--note", "n"),
    ("export", RUN, FILE, "--to", "csv"),
    ("export", RUN, FILE, "--to", "json"),
    ("export", RUN, FILE, "--to", "trace"),
    ("checkpoint", RUN),
    ("stop", RUN),
    ("validate", RUN + "/config.toml"),
)
OUTSIDE_COMMANDS: tuple[tuple[str, ...], ...] = (
    *COMMANDS,
    ("export", RUN, FILE, "--to", "safetensors"),
    ("plan", RUN + "/config.toml", "--json"),
    ("resume", RUN, "--devices", "cpu:1"),
    ("show", RUN, "--plan"),
    ("why", RUN),
)


def words_of(command: tuple[str, ...], run: Path, other: Path) -> list[str]:
    """The command with what its places stand for."""
    places = {OTHER: str(other), FILE: str(run.parent.parent / f"out.{command[-1]}")}
    return [places.get(word) or word.replace(RUN, str(run), word.startswith(RUN)) for word in command]


def command_here(command: tuple[str, ...], run: Path, other: Path) -> None:
    done = rankdeck_here(*words_of(command, run, other))
    assert done.code in (0, 1, 2, 3), done
    assert "Traceback" not in done.err and "\x1b" not in done.out, done
    assert done.code == 0 or done.err or done.out, done
    if command[-1] == "--json" and done.code == 0 and done.out:
        for text in done.out.splitlines() if command[0] == "watch" else [done.out]:
            json.loads(text, parse_constant=_no_number)


def _no_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
