"""Whoever reads a run, in this process: functions of the engine as the app calls them, and commands."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path

from rankdeck import run_dir
from rankdeck.base.errors import RankdeckError
from rankdeck.checkpoint_files import list_checkpoints, newest_intact
from rankdeck.diagnose.exceptions import read_last_lines
from rankdeck.diagnose.fixes import planned_fixes, read_planned_lines
from rankdeck.diagnose.out_of_memory import load_out_of_memory
from rankdeck.run import export
from rankdeck.run.prediction import read_prediction
from rankdeck.run.race import read_race
from rankdeck.run.race_row import race_info
from rankdeck.run.row import read_info, row_json
from rankdeck.run.row_index import RunRows
from rankdeck.run.row_metrics import run_metrics
from rankdeck.run.run_history import step_intervals
from rankdeck.run.run_state import RunState, read_run_state
from rankdeck.run.summary_builder import summarize
from rankdeck.run_dir import EventReader, RaceDir, RunDir
from tests.helpers.cli import rankdeck_in_process

Reader = Callable[[RunDir], object]


def _run_state(run: RunDir) -> None:
    state = read_run_state(run)
    read_run_state(run, attempt=0, max_rows=5)
    _look_at(state)
    run_metrics(state)
    load_out_of_memory(run, state)
    json.dumps(summarize(run, state).facts(), allow_nan=False)
    json.dumps(summarize(run, attempt=0).facts(), allow_nan=False)


def _look_at(state: RunState) -> None:
    """What the app draws."""
    curves = [
        state.losses,
        state.loss_ema,
        state.rates,
        state.lrs,
        state.grad_norms,
        state.held_out,
        state.steps_over_time,
    ]
    for curve in (*curves, *(metric.curve for metric in state.metrics.values())):
        curve.window(-math.inf, math.inf, 100)
        curve.window(-10.0, 1e6, 100)
    step_intervals(state)
    state.copy()
    assert state.num_events >= 0 and list(state.rows()) is not None


def _lists(run: RunDir) -> None:
    for entry in run_dir.list_runs(run.path.parent):
        assert entry.title and entry.outcome()
    for race in run_dir.list_races(run.path.parent):
        json.dumps(row_json(race_info(race)), allow_nan=False)
    json.dumps(row_json(read_info(run)), allow_nan=False)


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
    newest_intact(run.checkpoints_folder)


def _configuration(run: RunDir) -> None:
    for read in (run.config, run.script):
        with contextlib.suppress(RankdeckError):
            read()
    assert run.environment() is not None and run.next_attempt() > 0 and run.config_to_resume


def _race(run: RunDir) -> None:
    read_race(RaceDir(run.path))
    assert RaceDir(run.path).title is not None


def _predictions(run: RunDir) -> None:
    read_prediction(run)
    for fix in planned_fixes(read_planned_lines(run) or ()):
        assert fix.text and fix.headroom


def _log_tails(run: RunDir) -> None:
    for log in ("rank-0.0.err", "supervisor.0.err", "rank-0.0.out"):
        read_last_lines(run.logs_folder / log)


def _csv(run: RunDir) -> None:
    export.export_csv(run, run.path.parent.parent / "out.csv")


def _json(run: RunDir) -> None:
    export.export_json(run, run.path.parent.parent / "out.json")


def _trace(run: RunDir) -> None:
    export.export_trace(run, run.path.parent.parent / "out.trace")


def _tensorboard(run: RunDir) -> None:
    export.export_tensorboard(run, run.path.parent.parent / "out.tfevents")


def _weights(run: RunDir) -> None:
    export.are_weights_outdated(run)
    export.export_weights(run, run.path.parent.parent / "out.safetensors")


READERS: tuple[Reader, ...] = (
    _lists,
    _kept_rows,
    _events,
    _run_state,
    _checkpoints,
    _configuration,
    _race,
    _predictions,
    _log_tails,
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
    paths = {OTHER: str(other), FILE: str(run.parent.parent / f"out.{command[-1]}")}
    return [paths.get(word) or word.replace(RUN, str(run), word.startswith(RUN)) for word in command]


def command_here(command: tuple[str, ...], run: Path, other: Path) -> None:
    done = rankdeck_in_process(*words_of(command, run, other))
    assert done.exit_code in (0, 1, 2, 3), done
    assert "Traceback" not in done.err and "\x1b" not in done.out, done
    assert done.exit_code == 0 or done.err or done.out, done
    if command[-1] == "--json" and done.exit_code == 0 and done.out:
        for text in done.out.splitlines() if command[0] == "watch" else [done.out]:
            json.loads(text, parse_constant=_no_number)


def _no_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
