"""Run: a run by its directory, for the one who started or opened it.

Everything is read from the directory when it is asked for, so that a run that goes on tells more each time.
Arrays of steps have one entry per complete step; what is not known is NaN.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rankdeck.api import html
from rankdeck.api.html import choose_python_display
from rankdeck.api.run_arrays import FloatArray, IntArray, MetricValues, RunArrays
from rankdeck.base import files
from rankdeck.base.errors import ConfigError, Problem, RankdeckError, TrainingError
from rankdeck.base.phrases import phrase
from rankdeck.cli.display import Display
from rankdeck.cli.follow import follow
from rankdeck.launch.control import stop_if_alive, wait_for_end
from rankdeck.run.summary import RunSummary
from rankdeck.run.summary_builder import problems_of, summarize, verified_summary
from rankdeck.run_dir import EventReader, RunDir, parse_attempt

if TYPE_CHECKING:
    import torch

    from rankdeck.events import AnyEvent

_STOP_TIMEOUT_S = 60.0
_MAX_OUTPUT_BYTES = 64 << 20


class Run:
    """A run. `stops_with_ctrl_c`: Ctrl-C while waiting stops it, as of one that was started here."""

    def __init__(self, path: Path, *, stops_with_ctrl_c: bool = False) -> None:
        self._dir = RunDir(path)
        self._arrays = RunArrays(self._dir)
        self._stops_with_ctrl_c = stops_with_ctrl_c

    @property
    def name(self) -> str:
        """The name of its directory, which every command of rankdeck takes."""
        return self._dir.name

    @property
    def path(self) -> Path:
        return self._dir.path

    @property
    def outcome(self) -> str:
        """running, completed, failed, stopped or lost."""
        return self._dir.outcome()

    @property
    def is_running(self) -> bool:
        return self.outcome == "running"

    # Waiting and stopping.

    def wait(self, timeout_s: float | None = None, *, progress: bool = False) -> Run:
        """Return once the run has ended. Ctrl-C stops a run that was started here, in order, and is raised
        then; the second one stops it at once.

        Raises:
            RankdeckError: it has not ended within `timeout_s`; it goes on.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def has_time() -> bool:
            return deadline is None or time.monotonic() < deadline

        try:
            follow(self._dir, choose_python_display(self._dir) if progress else Display(), has_time)
        except KeyboardInterrupt:
            if self._stops_with_ctrl_c:
                self._stop_after_ctrl_c()
            raise
        if self.is_running:
            raise RankdeckError(
                phrase("{run} has not ended within {timeout_s:g} s.", run=self.name, timeout_s=timeout_s),
                code="timeout",
                advice=phrase("Wait longer, or stop it with run.stop()."),
            )
        # Its last word is said just before its guard lets go: then nothing of it is left.
        wait_for_end(self._dir, _STOP_TIMEOUT_S)
        return self

    def _stop_after_ctrl_c(self) -> None:
        try:
            self.stop()
        except KeyboardInterrupt:
            self.stop(now=True)

    def stop(self, *, now: bool = False) -> Run:
        """Stop the run and everything that belongs to it, and return once it has ended; nothing happens to
        one that is over. `now` does not let the step end first.

        Raises:
            RankdeckError: it has not stopped within a minute.
        """
        if self.is_running:
            stop_if_alive(self._dir, now=now)
        if not wait_for_end(self._dir, _STOP_TIMEOUT_S):
            raise RankdeckError(
                phrase(
                    "{run} has not stopped within {timeout_s:.0f} s.",
                    run=self.name,
                    timeout_s=_STOP_TIMEOUT_S,
                ),
                code="not-stopped",
                advice=phrase("Try run.stop(now=True)."),
            )
        return self

    def check(self) -> Run:
        """The run itself, where it ended well.

        Raises:
            TrainingError: it failed or is lost; its problems are those of the run.
        """
        if self.outcome in ("failed", "lost"):
            problems = [problem for problem in self.problems if problem.severity == "error"]
            first = problems[0].message if problems else phrase("It is {outcome}.", outcome=self.outcome)
            raise TrainingError(phrase("{run}: {first}", run=self.name, first=first), problems=problems)
        return self

    # Figures.

    @property
    def steps(self) -> IntArray:
        """The numbers of the steps that the arrays below are of; the first step of a run is 1."""
        return self._arrays.refresh().steps

    @property
    def loss(self) -> FloatArray:
        """The loss of each step, over all ranks. A script's is known of sampled steps only."""
        return self._arrays.refresh().column("loss")

    @property
    def lr(self) -> FloatArray:
        return self._arrays.refresh().column("lr")

    @property
    def step_s(self) -> FloatArray:
        """Seconds from the end of the step before."""
        return self._arrays.refresh().column("step_s")

    @property
    def samples_per_s(self) -> FloatArray:
        figures = self._arrays.refresh()
        with np.errstate(divide="ignore", invalid="ignore"):
            rates: FloatArray = figures.column("samples") / figures.column("step_s")
        rates[~np.isfinite(rates)] = np.nan
        return rates

    @property
    def memory(self) -> FloatArray:
        """Bytes (steps, devices) at each sampled step's peak; of a script on CPU what owners were seen to
        hold."""
        return self._arrays.refresh().memory()

    @property
    def metrics(self) -> dict[str, MetricValues]:
        """Name -> (steps, values): what a script has logged, or a configured run's evaluations."""
        return self._arrays.refresh().metrics()

    @property
    def summary(self) -> dict[str, Any]:
        """What `rankdeck show --json` tells."""
        return self._summary().facts()

    @property
    def verified(self) -> dict[str, Any] | None:
        """Whether it computes what one device does, as the check before its first step found: outcome, cause,
        names, largest, precision, samples, seconds, text. None where there was no check."""
        found = verified_summary(self._arrays.refresh().state.verified)
        return None if found is None else msgspec.structs.asdict(found)

    @property
    def problems(self) -> list[Problem]:
        """What was raised, the oldest first: code, message, advice, rank, severity."""
        return problems_of(self._dir, self._arrays.refresh().state, self.outcome)

    # Files.

    def logs(self, rank: int = 0) -> str:
        """What a rank wrote to stdout and then to stderr, in the newest attempt that it was part of; of each
        the last 64 MiB.

        Raises:
            ConfigError: there is no such rank.
        """
        found = {
            suffix: list(self._dir.logs_folder.glob(f"rank-{rank}.*.{suffix}")) for suffix in ("out", "err")
        }
        attempts = [parse_attempt(file.name) for logs in found.values() for file in logs]
        if not attempts:
            raise ConfigError(
                phrase("{run} has no log of rank {rank}.", run=self.name, rank=rank), code="no-log"
            )
        texts = [self._dir.logs_folder / f"rank-{rank}.{max(attempts)}.{suffix}" for suffix in found]
        parts = [files.read_tail(text, _MAX_OUTPUT_BYTES)[1] for text in texts if files.is_regular(text)]
        return b"".join(parts).decode("utf-8", "replace")

    def weights(self) -> dict[str, torch.Tensor]:
        """The final weights under the model's own names, for `load_state_dict`.

        Raises:
            ConfigError: there are none.
        """
        if not self._dir.weights.is_file():
            raise ConfigError(
                phrase("{run} has no weights.", run=self.name),
                code="no-weights",
                advice=phrase("A script's weights are where the script itself saves them.")
                if self._dir.script() is not None
                else phrase("They are saved after the last step."),
            )
        from rankdeck.checkpoint.weights import read_weights_file

        return read_weights_file(self._dir.weights)

    def events(self) -> Iterator[tuple[str, AnyEvent]]:
        """Every event as (writer, event); rankdeck.events says what there is."""
        reader = EventReader(self._dir)
        while found := reader.read():
            yield from found

    # How it looks.

    def _summary(self) -> RunSummary:
        return summarize(self._dir, self._arrays.refresh().state)

    def __repr__(self) -> str:
        fold = self._arrays.refresh().state
        newest = fold.newest_value("loss")
        at = "" if newest is None or newest[0] == fold.step else f" at step {newest[0]}"
        loss = "" if newest is None else f", loss {newest[1]:.4f}{at}"
        return f"<Run {self.name}: {self.outcome}, {fold.step or 0} steps{loss}>"

    def _repr_html_(self) -> str:
        return html.run_table(self._summary(), self.loss)
