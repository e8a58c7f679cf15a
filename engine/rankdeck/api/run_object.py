"""Run: a run directory as an object, for code that started or opened the run.

Each access reads the directory, so a running run shows its latest state. Step arrays have one entry per
complete step; unknown values are NaN.
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
from rankdeck.diagnose.findings import problems_and_findings
from rankdeck.launch.control import stop_if_alive, wait_for_end
from rankdeck.run.run_state import read_run_state
from rankdeck.run.summary import RunSummary
from rankdeck.run.summary_builder import summarize, verified_summary
from rankdeck.run_dir import EventReader, RunDir, parse_attempt

if TYPE_CHECKING:
    import torch

    from rankdeck.events import AnyEvent

_STOP_TIMEOUT_S = 60.0
_MAX_OUTPUT_BYTES = 64 << 20


class Run:
    """A run. `stops_with_ctrl_c` is True for runs that this process started: Ctrl-C during `wait` stops the
    run."""

    def __init__(self, path: Path, *, stops_with_ctrl_c: bool = False) -> None:
        self._dir = RunDir(path)
        self._arrays = RunArrays(self._dir)
        self._stops_with_ctrl_c = stops_with_ctrl_c

    @property
    def name(self) -> str:
        """The name of the run directory, which every rankdeck command that takes a run accepts."""
        return self._dir.name

    @property
    def path(self) -> Path:
        return self._dir.path

    @property
    def outcome(self) -> str:
        """The outcome: running, completed, failed, stopped or lost."""
        return self._dir.outcome()

    @property
    def is_running(self) -> bool:
        return self.outcome == "running"

    # Waiting and stopping.

    def wait(self, timeout_s: float | None = None, *, progress: bool = False) -> Run:
        """Return once the run has ended; if `progress` is True, show its progress until then.

        If this process started the run, Ctrl-C stops the run gracefully and raises KeyboardInterrupt; a
        second Ctrl-C stops it at once.

        Raises:
            RankdeckError: the run has not ended within `timeout_s`; it continues.
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
                phrase("{run} did not end within {timeout_s:g} s.", run=self.name, timeout_s=timeout_s),
                code="timeout",
                advice=phrase("Wait longer, or stop the run with run.stop()."),
            )
        # The exit record is written just before the guard releases the run; only then are all its processes
        # gone.
        wait_for_end(self._dir, _STOP_TIMEOUT_S)
        return self

    def _stop_after_ctrl_c(self) -> None:
        try:
            self.stop()
        except KeyboardInterrupt:
            # A second Ctrl-C, pressed while the run still finishes its step.
            self.stop(now=True)

    def stop(self, *, now: bool = False) -> Run:
        """Stop the run with all its processes, and return once it has ended.

        A run that is already over is left unchanged. If `now` is True, the run does not finish its current
        step.

        Raises:
            RankdeckError: the run has not stopped within a minute.
        """
        if self.is_running:
            stop_if_alive(self._dir, now=now)
        if not wait_for_end(self._dir, _STOP_TIMEOUT_S):
            raise RankdeckError(
                phrase(
                    "{run} did not stop within {timeout_s:.0f} s.",
                    run=self.name,
                    timeout_s=_STOP_TIMEOUT_S,
                ),
                code="not-stopped",
                advice=phrase("Try run.stop(now=True)."),
            )
        return self

    def check(self) -> Run:
        """Return the run itself unless it failed or is lost.

        Raises:
            TrainingError: the run failed or is lost; the error's `problems` are those of the run.
        """
        if self.outcome in ("failed", "lost"):
            problems = [problem for problem in self.problems if problem.severity == "error"]
            first = (
                problems[0].message
                if problems
                else phrase('The run ended with outcome "{outcome}".', outcome=self.outcome)
            )
            raise TrainingError(phrase("{run}: {first}", run=self.name, first=first), problems=problems)
        return self

    # Metrics.

    @property
    def steps(self) -> IntArray:
        """The step number of each entry in the step arrays; a run's first step is 1."""
        return self._arrays.refresh().steps

    @property
    def loss(self) -> FloatArray:
        """The mean loss of each step over all ranks. A script's loss is known for sampled steps only."""
        return self._arrays.refresh().column("loss")

    @property
    def lr(self) -> FloatArray:
        return self._arrays.refresh().column("lr")

    @property
    def step_s(self) -> FloatArray:
        """The seconds between the end of each step and the end of the previous one."""
        return self._arrays.refresh().column("step_s")

    @property
    def samples_per_s(self) -> FloatArray:
        arrays = self._arrays.refresh()
        with np.errstate(divide="ignore", invalid="ignore"):
            rates: FloatArray = arrays.column("samples") / arrays.column("step_s")
        rates[~np.isfinite(rates)] = np.nan
        return rates

    @property
    def memory(self) -> FloatArray:
        """Peak bytes of each sampled step, with shape (steps, devices).

        For a script on the CPU, the values are the live bytes of the observed parameters, gradients, buffers
        and optimizer state.
        """
        return self._arrays.refresh().memory()

    @property
    def metrics(self) -> dict[str, MetricValues]:
        """The metrics that a script logged or, for a run of a configuration, the held-out losses and
        accuracies: a mapping from name to (steps, values)."""
        return self._arrays.refresh().metrics()

    @property
    def summary(self) -> dict[str, Any]:
        """The output of `rankdeck show --json`."""
        return self._summary().facts()

    @property
    def verified(self) -> dict[str, Any] | None:
        """Result of checking, before the first step, that the run gives the same results as a single device.

        Its keys are outcome, cause, names, largest, precision, samples, seconds and text. None if there was
        no check.
        """
        verification = verified_summary(self._arrays.refresh().state.verified)
        return None if verification is None else msgspec.structs.asdict(verification)

    @property
    def problems(self) -> list[Problem]:
        """The problems that the run reported and the findings about it, errors first.

        Each has code, message, advice, rank, severity and evidence.
        """
        return problems_and_findings(self._dir, read_run_state(self._dir, curves=True))

    # Files.

    def logs(self, rank: int = 0) -> str:
        """Return a rank's stdout followed by its stderr, at most the last 64 MiB of each.

        The output comes from the newest attempt that included the rank.

        Raises:
            ConfigError: there is no such rank.
        """
        log_files = {
            suffix: list(self._dir.logs_folder.glob(f"rank-{rank}.*.{suffix}")) for suffix in ("out", "err")
        }
        attempts = [parse_attempt(file.name) for logs in log_files.values() for file in logs]
        if not attempts:
            raise ConfigError(
                phrase("{run} has no log for rank {rank}.", run=self.name, rank=rank), code="no-log"
            )
        texts = [self._dir.logs_folder / f"rank-{rank}.{max(attempts)}.{suffix}" for suffix in log_files]
        contents = [files.read_tail(text, _MAX_OUTPUT_BYTES)[1] for text in texts if files.is_regular(text)]
        return b"".join(contents).decode("utf-8", "replace")

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the final weights as a state dict for the model's `load_state_dict`.

        Raises:
            ConfigError: the run has no weights.
        """
        if not self._dir.weights.is_file():
            raise ConfigError(
                phrase("{run} has no weights.", run=self.name),
                code="no-weights",
                advice=phrase("Rankdeck does not save a script's weights; the script has to save them.")
                if self._dir.script() is not None
                else phrase("Weights are saved after the last step."),
            )
        # Imported here, because it imports torch.
        from rankdeck.checkpoint.weights import read_weights_file

        return read_weights_file(self._dir.weights)

    def events(self) -> Iterator[tuple[str, AnyEvent]]:
        """Yield every event as (writer, event); rankdeck.events lists the event types."""
        reader = EventReader(self._dir)
        while batch := reader.read():
            yield from batch

    # Presentation.

    def _summary(self) -> RunSummary:
        return summarize(self._dir, self._arrays.refresh().state)

    def __repr__(self) -> str:
        state = self._arrays.refresh().state
        newest = state.newest_value("loss")
        # A script's losses are sampled, so the newest may belong to an earlier step.
        at = "" if newest is None or newest[0] == state.step else f" at step {newest[0]}"
        loss = "" if newest is None else f", loss {newest[1]:.4f}{at}"
        return f"<Run {self.name}: {self.outcome}, {state.step or 0} steps{loss}>"

    def _repr_html_(self) -> str:
        return html.run_table(self._summary(), self.loss)
