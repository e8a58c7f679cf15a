"""Store a race, whose strategies train the same first steps on the same devices, as race.json in its folder.

The file is replaced after each entry, so readers always see the current state. race_verdicts.py compares the
entries; its results (agreement, places, the winner) are stored in the file too. Keys are only ever added;
`version` counts changes that an older reader could not understand. See run_dir/listing.py for the folder.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from rankdeck.base import files
from rankdeck.base.errors import Problem
from rankdeck.base.parsing import check_depth, decode_document
from rankdeck.base.phrases import TranslatableStruct, phrase, tr_noop
from rankdeck.base.units import format_duration
from rankdeck.events import DeviceInfo
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run_dir import RaceDir, RunDir, read_labels

VERSION = 1
WARM_UP_STEPS = 5
"""Number of untimed initial steps: first calls are slow, and the ledger tracks the first three steps."""

WAITING, RUNNING, COMPLETED, FAILED, STOPPED, LOST = (
    "waiting",
    "running",
    "completed",
    "failed",
    "stopped",
    "lost",
)
AGREES, EXPECTED, DIFFERS, REFERENCE = "agrees", "expected", "differs", "reference"


class EntryMeasurement(msgspec.Struct, kw_only=True):
    """Measurements of one entry of a race.

    `step_s` are the step times after the warm-up, in order; `peak_bytes` has a value for each device (None if
    it was not read); `sent_bytes` is the sum for all ranks in one step; `losses` has a value for every step,
    None if unknown; `seconds` is the duration of the whole entry including its start.
    """

    step_s: list[float]
    samples_per_s: float | None
    peak_bytes: list[int | None]
    sent_bytes: int | None
    losses: list[float | None]
    seconds: float

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.step_s) if self.step_s else None

    def quantile_s(self, share: float) -> float | None:
        """Return the step time that a fraction `share` of the steps do not exceed."""
        times = sorted(self.step_s)
        return times[min(len(times) - 1, round(share * (len(times) - 1)))] if times else None


class LossAgreement(TranslatableStruct, kw_only=True):
    """Comparison of an entry's losses with those of the reference.

    `difference` is the largest relative difference, in step `step`. `verdict`: reference | agrees | expected
    | differs; `reason` explains the verdicts "expected" and "differs". `is_as_good` is true if the difference
    does not make the training worse.
    """

    verdict: str
    difference: float | None = None
    step: int | None = None
    reason: str | None = None
    is_as_good: bool = True


class RaceEntry(TranslatableStruct, kw_only=True):
    """One strategy with its options. `folder` is its run directory, inside the race's folder.

    `state`: waiting | running | completed | failed | stopped; `problem`: why the entry failed. `place`
    counts from 1, and entries that cannot be distinguished share a place. `repeats` is the number of the
    entry that this entry repeats to measure how much step times drift. `seen` contains the notes that the run
    reported about itself, as a map from code to text. `verified` is the result, as text, of the check before
    the first step, and `verified_outcome` is the outcome from events.Verified.
    """

    number: int
    folder: str
    label: str
    strategy: str
    options: dict[str, object]
    predicted: PlanLine
    state: str = WAITING
    problem: Problem | None = None
    measured: EntryMeasurement | None = None
    agreement: LossAgreement | None = None
    place: int | None = None
    repeats: int | None = None
    seen: dict[str, str] = msgspec.field(default_factory=dict)
    verified: str = ""
    verified_outcome: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_depth(self.options)

    @property
    def is_over(self) -> bool:
        return self.state not in (WAITING, RUNNING)

    @property
    def median_s(self) -> float | None:
        return None if self.measured is None else self.measured.median_s


class ExcludedStrategy(TranslatableStruct, kw_only=True):
    """A strategy of the plan that is excluded from the race, and the reason."""

    label: str
    verdict: str
    reason: str | None = None


class RaceVerdicts(TranslatableStruct, kw_only=True):
    """Results of comparing the entries. `reference`, `fastest` and `winner` are entry numbers.

    Losses agree if they differ by at most `bar` (relative) in the first steps and `late_bar` later. `drift`
    is the relative change of the median step time from the first entry to its repetition. `fastest` is the
    simplest of the fastest entries that train as well as the reference (reason: `fastest_why`). `winner` is
    None in a rehearsal, whose times are not GPU times. If the machine's speed changed too much to rank the
    leading entries, `fastest` and `winner` are None and `inconclusive` explains that. `notes` are texts.
    """

    reference: int | None = None
    bar: float | None = None
    late_bar: float | None = None
    drift: float | None = None
    fastest: int | None = None
    fastest_why: str = ""
    winner: int | None = None
    inconclusive: str = ""
    notes: list[str] = msgspec.field(default_factory=list)


class Race(msgspec.Struct, kw_only=True):
    """A race with all entries. Times are Unix seconds; `outcome` is running | completed | stopped."""

    version: int = VERSION
    name: str
    title: str
    began: float
    ended: float | None = None
    outcome: str = RUNNING
    source: str
    devices: list[DeviceInfo]
    steps: int
    warm_up_steps: int = WARM_UP_STEPS
    global_batch: int
    seed: int
    precision: str
    allow_tf32: bool = False
    entries: list[RaceEntry] = []
    left_out: list[ExcludedStrategy] = []
    verdicts: RaceVerdicts = msgspec.field(default_factory=RaceVerdicts)

    @property
    def is_rehearsal(self) -> bool:
        return self.devices[0].kind == "virtual"

    @property
    def unique_entries(self) -> list[RaceEntry]:
        """All entries except the entry that repeats the first entry."""
        return [entry for entry in self.entries if entry.repeats is None]

    @property
    def num_finished(self) -> int:
        """Number of unique entries that ended without being stopped."""
        return sum(entry.is_over and entry.state != STOPPED for entry in self.unique_entries)

    def entry(self, number: int | None) -> RaceEntry | None:
        return next((entry for entry in self.entries if entry.number == number), None)

    @property
    def exit_code(self) -> int:
        """Exit code of a race: 0 if all entries completed and no losses differ unexpectedly, else 1."""
        good = all(
            entry.state == COMPLETED and (entry.agreement is None or entry.agreement.verdict != DIFFERS)
            for entry in self.entries
        )
        return 0 if good and self.entries else 1


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Race)


def write_race(folder: RaceDir, race: Race) -> None:
    """Replace race.json atomically. Raises OSError."""
    files.replace_file(folder.file, msgspec.json.format(_encoder.encode(race), indent=1) + b"\n")


def read_race(folder: RaceDir) -> Race | None:
    """Return the race in a folder; None if its file cannot be read or is of an unknown version.

    A race whose process was killed has the outcome "lost", but its measurements remain. A title set by the
    user replaces the stored title.
    """
    try:
        # Checked before the file is read: a race that ends in between must not appear lost.
        is_alive = folder.is_alive()
        race = decode_document(_decoder.decode, files.read_bytes(folder.file))
    except (OSError, msgspec.DecodeError):
        return None
    if race.version > VERSION or not race.devices:
        return None
    if race.outcome == RUNNING and not is_alive:
        race.outcome = LOST
    race.title = read_labels(folder.path).name or race.title
    return race


def entry_run(folder: RaceDir, entry: RaceEntry) -> RunDir:
    return RunDir(folder.path / entry.folder)


# Duration of a race: shown before it starts, and for the rest of it while it runs.

_STARTUP_S = {"virtual": 5.0, "gpu": 12.0}
"""Approximate time before an entry's first step, by kind of device."""
_ABOUT, _AT_LEAST = tr_noop("about {time}"), tr_noop("at least {time}")


def estimate_duration_s(lines: Sequence[PlanLine], steps: int) -> tuple[float, bool]:
    """Return (duration of a race, whether it is only a lower bound).

    It is a lower bound if any step time is not predicted, as on a CPU.
    """
    timed = [line.step.middle_s for line in lines if line.step is not None]
    is_gpu = bool(timed)
    starting_s = _STARTUP_S["gpu" if is_gpu else "virtual"]
    again_s = timed[0] if timed else 0.0
    # The first entry runs again at the end, to measure the machine's drift.
    return (len(lines) + 1) * starting_s + steps * (sum(timed) + again_s), len(timed) < len(lines)


def duration_text(lines: Sequence[PlanLine], steps: int) -> str:
    """Format a race's duration: 'about 3 min', or 'at least 1 min 25 s' if step times are not known."""
    seconds, is_least = estimate_duration_s(lines, steps)
    return phrase(_AT_LEAST if is_least else _ABOUT, time=format_duration(seconds))


def remaining_text(race: Race) -> str:
    """Format a race's remaining time. The estimate uses the durations of the measured entries; before the
    first measurement, it uses the predictions."""
    waiting = [entry for entry in race.entries if not entry.is_over]
    took_s = [entry.measured.seconds for entry in race.entries if entry.measured is not None]
    if not took_s:
        return duration_text([entry.predicted for entry in waiting], race.steps)
    repeats = any(entry.repeats is not None for entry in race.entries)
    # The repetition may not be among the entries yet.
    left_s = sum(took_s) / len(took_s) * (len(waiting) + (0 if repeats else 1))
    return phrase(_ABOUT, time=format_duration(left_s))
