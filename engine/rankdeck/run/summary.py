"""Define the summary of a run, which `show --json` prints and all other views of a run read.

`summarize` (summary_builder.py) makes it from the run's state and from its other files. The keys of `facts`
are a contract: keys may be added, never changed. None means unknown; sizes are bytes, durations are seconds,
points in time are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.run.scaling import LossScalingSummary


class LossRange(msgspec.Struct, frozen=True):
    """The first finite loss, and the loss of the last step (for a script, the newest known loss)."""

    first: float | None
    last: float | None


class StepSeconds(msgspec.Struct, frozen=True):
    """Seconds from the end of one step to the end of the next."""

    median: float | None
    p99: float | None


class EvaluationSummary(msgspec.Struct, frozen=True):
    """The newest evaluation."""

    loss: float | None
    accuracy: float | None
    step: int
    samples: int | None


class VerifiedSummary(msgspec.Struct, frozen=True):
    """Result of the check before the first step (events.Verified); `text` states it in one sentence."""

    outcome: str
    cause: str | None
    names: list[str]
    largest: float | None
    precision: str | None
    samples: int | None
    steps: int
    layers: int | None
    seconds: float
    text: str


class DeviceSummary(msgspec.Struct, frozen=True):
    """A device and its memory. `sampled_steps` is the number of steps that the peak covers; None means all
    steps."""

    device: int
    name: str | None
    uuid: str | None
    kind: str | None
    total_bytes: int | None
    host: str | None
    utilisation_mean: float | None
    used_peak_bytes: int | None
    lost_at: float | None
    peak_bytes: int | None
    peak_by_kind: Mapping[str, int] | None
    live_bytes: int | None
    live_by_kind: Mapping[str, int] | None
    memory_source: str | None
    sampled_steps: int | None
    breakdown: Mapping[str, int] | None
    predicted_peak_bytes: int | None


class ImbalanceSummary(msgspec.Struct, frozen=True):
    """The device with the most memory in use, compared with the median of the other devices."""

    device: int
    excess_bytes: int
    ratio: float | None


class CommSummary(msgspec.Struct, frozen=True):
    """Bytes that ranks send in a step. Lists have one item per rank, None if the rank has not reported."""

    algorithm: str
    sent_bytes_per_step: list[int | None]
    sync_s: list[float | None]
    overlapped_s: list[float | None]


class BubbleShare(msgspec.Struct, frozen=True):
    """Share of a step that a pipeline's devices spend waiting, as measured and as the schedule implies."""

    measured: float | None
    theory: float | None


class StageSummary(msgspec.Struct, frozen=True):
    """A rank's report about its pipeline stages."""

    rank: int
    stages: list[int]
    microbatches: int
    in_flight: int
    weight_versions: int | None
    staleness: int | None


class DevicePhases(msgspec.Struct, frozen=True):
    device: int
    seconds_by_phase: dict[str, float]


class SampledStep(msgspec.Struct, frozen=True):
    """Duration of the last sampled step, and the time that each device spent in each phase of it."""

    step: int
    seconds: float
    simulated: bool
    devices: list[DevicePhases]


class TrainingData(msgspec.Struct, frozen=True):
    """Number of training samples, and how many of them each epoch leaves out."""

    samples: int | None = None
    left_out: int | None = None

    def text(self) -> str:
        """Format a note on the samples that an epoch leaves out; empty if there are none or the number is
        unknown."""
        if not self.left_out:
            return ""
        return phrase(
            '{left_out} of {samples} samples left out of each epoch (data.last = "drop")',
            left_out=self.left_out,
            samples=self.samples,
        )


class ScriptStart(msgspec.Struct, frozen=True):
    """Command and settings with which a user script starts."""

    run: str
    kind: str
    args: list[str]
    folder: str
    python: str
    ranks: int
    observe: str


class ObservedRank(msgspec.Struct, frozen=True):
    rank: int
    pid: int | None
    world_size: int | None
    steps: int
    skipped: int | None
    wait_share: float | None


class ObservedScript(msgspec.Struct, frozen=True):
    """Observations reported by the lowest rank (events.Observed), and values that differ by rank."""

    script: str
    versions: dict[str, str]
    wrapper: str | None
    wrapper_options: dict[str, object]
    backend: str | None
    model: str | None
    num_parameters: int | None
    optimizer: str | None
    parameter_groups: list[dict[str, object]]
    other_optimizers: dict[str, int]
    skipped: int
    dataset: str | None
    num_samples: int | None
    batch: int | None
    loader_workers: int | None
    first_batches: str | None
    same_epochs: int
    sampler: dict[str, object]
    epoch_batches: int | None
    batch_norms: int | None
    accumulate: int | None
    precision: str | None
    not_finite: int | None
    libraries: list[str]
    parts: dict[str, str]
    ranks: list[ObservedRank]


class MetricSummary(msgspec.Struct, frozen=True):
    """Values logged under one name; `through` is the API used, `last` the newest value, logged at `step`."""

    last: float | None
    step: int | None
    count: int
    through: str


class CollectiveSummary(msgspec.Struct, frozen=True):
    """Collectives that a script itself called on one rank, by name of the collective."""

    rank: int
    calls: dict[str, int]
    num_bytes: dict[str, int]
    seconds: dict[str, float]


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run, or of its state after one attempt.

    `estimated` means that rates and step times do not cover every step.
    """

    run: str
    title: str
    tags: list[str]
    note: str
    archived: bool
    path: str
    outcome: str
    reason: str | None
    strategy: str | None
    options: dict[str, object]
    steps: int
    attempts: int
    loss: LossRange
    loss_scaling: LossScalingSummary | None
    evaluation: EvaluationSummary | None
    verified: VerifiedSummary | None
    samples_per_s: float | None
    step_s: StepSeconds
    estimated: bool
    first_step_s: float | None
    devices: list[DeviceSummary]
    imbalance: ImbalanceSummary | None
    comm: CommSummary | None
    bubble: BubbleShare | None
    pipeline: list[StageSummary] | None
    anatomy: SampledStep | None
    pace: str | None
    problems: list[Problem]
    steps_measured: int
    steps_planned: int | None
    data: TrainingData | None
    source: str | None
    started: float | None
    ended: float | None
    exit_code: int | None
    weights: str | None
    missing_lines: int
    unreadable: int
    newer_events: int
    run_source: str
    script: ScriptStart | None
    script_status: int | None
    steps_per_s: float | None
    wait_share: float | None
    loss_step: int | None
    not_finite: int | None
    observed: ObservedScript | None
    metrics: dict[str, MetricSummary]
    collectives: list[CollectiveSummary] | None
    notes: list[str]
    # UNSET omits the key from the JSON: only `show` looks for findings.
    findings: list[Problem] | msgspec.UnsetType = msgspec.UNSET
    """Findings from applying rules to the metrics; set by `show`."""

    def facts(self) -> dict[str, object]:
        """Return the data that `show --json` prints."""
        facts: dict[str, object] = msgspec.to_builtins(self)
        facts["problems"] = problems_json(self.problems)
        if self.findings is not msgspec.UNSET:
            facts["findings"] = problems_json(self.findings)
        return facts


def problems_json(problems: Iterable[Problem]) -> list[dict[str, object]]:
    """Return the problems as JSON objects with every key, even if its value is empty."""
    entries = [msgspec.structs.asdict(entry) for entry in problems]
    return [
        {**entry, "last_lines": list(entry["last_lines"]), "evidence": msgspec.to_builtins(entry["evidence"])}
        for entry in entries
    ]
