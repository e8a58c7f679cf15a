"""Builds the plan page's data: plain functions, no widgets. Unknown values are shown as dashes."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run import race as races
from rankdeck.run.imbalance import find_imbalance, lead_device
from rankdeck.run.plan_lines import PlanLine, PlannedDevice, group_equal_devices
from rankdeck.run.race import Race, RaceEntry
from rankdeck.run.verified import ONE_DEVICE, OUTCOME_TEXTS
from rankdeck_app.language import tr, translate
from rankdeck_app.state.draft_race import DraftRace
from rankdeck_app.state.plan import DraftPlan, PlanRow
from rankdeck_app.state.plan_text import (
    device_index,
    device_label,
    free_memory_text,
    has_fit_problem,
    options_text,
    peak_text,
    reason_text,
    step_text,
    strategy_name,
    time_text,
    verdict_text,
)
from rankdeck_app.state.plan_verification import PENDING
from rankdeck_app.widgets.chart import UNKNOWN, bytes_table
from rankdeck_app.widgets.chart_colors import KIND_LABELS
from rankdeck_app.widgets.run_list import strategy_title
from rankdeck_app.widgets.stat_strip import Stat

RESERVED, CONSTANTS, OTHERS = "reserved", "constants", "others"
# In the drawing order of a bar's segments.
SEGMENT_LABELS: Mapping[str, str] = {
    **KIND_LABELS,
    RESERVED: tr_noop("reserved, unused"),
    CONSTANTS: tr_noop("driver and NCCL"),
    OTHERS: tr_noop("other processes"),
}
FASTEST = tr_noop("Fastest")
RECOMMENDED, LEAST_MEMORY = tr_noop("Recommended"), tr_noop("Least memory")
_STAT_LABELS = {
    RECOMMENDED: tr_noop("Recommended: {strategy}"),
    LEAST_MEMORY: tr_noop("Least memory: {strategy}"),
}
_MAX_OVERSHOOT = 1.3  # bars are drawn up to this multiple of the capacity
_EXPECTED_DEVICES = 4  # number of empty bars while there is no result yet


@dataclass(frozen=True)
class PlanBar:
    """The bar of one device, or of several devices that need the same memory. The segments add up to
    `total_bytes`. `is_lead` means that the device needs notably more memory than the others; `index_text` is
    the short label beside the bar."""

    label: str
    total_bytes: int
    segments: tuple[tuple[str, int], ...]
    is_lead: bool = False
    index_text: str = ""


@dataclass(frozen=True)
class PlanRowData:
    """A table row: one strategy with its options. If there is no prediction, `bars` is empty and `reason`
    explains why; `is_pending` is True while a result can still arrive. `verification` is an outcome of
    PlanVerification, "" if unknown."""

    key: tuple[str, str]
    icon: str
    title: str
    options: str
    is_chosen: bool = False
    is_pending: bool = False
    bars: tuple[PlanBar, ...] = ()
    num_tracks: int = 0
    reason: str = ""
    peak: str = UNKNOWN
    peak_note: str = ""
    is_hot: bool = False
    step: str = UNKNOWN
    step_note: str = ""
    measured_peak: str = ""
    measured_step: str = ""
    verdict: str = ""
    verdict_text: str = ""
    verdict_note: str = ""
    verification: str = ""
    verification_text: str = ""
    marks: tuple[str, ...] = ()
    tooltip: str = ""

    @property
    def description(self) -> str:
        """The row's text for screen readers."""
        verdict = (self.verdict_text, self.verdict_note)
        peak, step = self.measured_peak, self.measured_step
        measured_peak = tr("measured {size}", size=peak) if peak else ""
        measured_step = tr("measured {time} a step", time=step) if step else ""
        measured = (measured_peak, measured_step)
        one_device = f"{tr(ONE_DEVICE)}: {self.verification_text}" if self.verification_text else ""
        marks = map(tr, self.marks)
        texts = (self.title, self.options, self.peak, *measured, *verdict, one_device, *marks, self.reason)
        return ", ".join(text for text in texts if text and text != UNKNOWN)


@dataclass(frozen=True)
class Scale:
    """Scale of all bars, from 0 to `end_bytes`; if `is_fitted`, the end can be below the capacity."""

    end_bytes: int = 1
    capacity_bytes: int | None = None
    is_fitted: bool = False

    @property
    def shows_capacity(self) -> bool:
        return self.capacity_bytes is not None and self.capacity_bytes <= self.end_bytes


def scale(lines: Sequence[PlanLine], *, is_fitted: bool = False) -> Scale:
    """Return the scale of the bars of `lines`; if `is_fitted`, it may end below the capacity. Bars that
    extend far beyond the capacity are cut off, so that the other bars are not compressed."""
    devices = [device for line in lines for device in line.devices]
    largest = max((device.total_bytes + device.others_bytes for device in devices), default=1)
    capacities = [device.capacity_bytes for device in devices if device.capacity_bytes is not None]
    if not capacities:
        return Scale(max(largest, 1))
    capacity = min(capacities)
    shown_bytes = min(largest, int(_MAX_OVERSHOOT * capacity))
    return Scale(shown_bytes if is_fitted else max(capacity, shown_bytes), capacity, is_fitted)


def axis_text(scale: Scale) -> str:
    """Return the range that a full bar covers, such as '0–40 GiB' or '0–1.2 GiB, fitted'."""
    size = format_round_bytes(scale.end_bytes)
    return tr("0–{size}, fitted", size=size) if scale.is_fitted else f"0–{size}"


def format_round_bytes(num_bytes: int) -> str:
    """Format bytes without a trailing '.0': '40 GiB', '1.2 GiB'."""
    return format_bytes(num_bytes).replace(".0 ", " ")


def rows(plan: DraftPlan, raced: DraftRace | None = None) -> list[PlanRowData]:
    """Return the table's rows. Measurements from the race in `raced`, if any, are below the predictions."""
    cheapest, recommended, _ = plan.marks
    marks = ((RECOMMENDED, recommended), (LEAST_MEMORY, cheapest))
    data = [
        _row(plan, row, tuple(word for word, line in marks if line is not None and line is row.line))
        for row in plan.rows
    ]
    if raced is None or raced.race is None:
        return data
    race = raced.race
    entries = [None if row.line is None else raced.find_entry(row.line) for row in plan.rows]
    return [
        row_data if entry is None else _with_measured(row_data, entry, race)
        for row_data, entry in zip(data, entries, strict=True)
    ]


def _with_measured(row_data: PlanRowData, entry: RaceEntry, race: Race) -> PlanRowData:
    measured, running = entry.measured, race.outcome == races.RUNNING
    # While the race runs, the fastest entry may still change.
    is_fastest = entry.number == race.verdicts.fastest and not running
    peaks = [] if measured is None else [size for size in measured.peak_bytes if size is not None]
    agreement = entry.agreement
    lines = []
    if measured is not None and entry.median_s is not None:
        lines.append(_measured_text(entry.median_s, max(peaks, default=None)))
    if agreement is not None and agreement.reason:
        lines.append(translate(agreement.reason, agreement.phrases))
    if entry.problem is not None:
        lines.append(tr("failed in the race: {problem}", problem=entry.problem.message))
    states = {races.FAILED: tr("failed in the race"), **({races.RUNNING: tr("racing…")} if running else {})}
    return replace(
        row_data,
        measured_peak=format_bytes(max(peaks)) if peaks else "",
        measured_step="" if entry.median_s is None else time_text(entry.median_s),
        verdict_note=states.get(entry.state, row_data.verdict_note),
        marks=(*row_data.marks, FASTEST) if is_fastest else row_data.marks,
        tooltip="<br>".join([row_data.tooltip, *map(html.escape, lines)]),
    )


def _measured_text(step_s: float, peak_bytes: int | None) -> str:
    if peak_bytes is None:
        return tr("measured: {time} a step", time=time_text(step_s))
    peak = format_bytes(peak_bytes)
    return tr("measured: {time} a step, peak {peak}", time=time_text(step_s), peak=peak)


def _row(plan: DraftPlan, row: PlanRow, marks: tuple[str, ...]) -> PlanRowData:
    card, line = STRATEGIES.get(row.strategy), row.line
    key, icon = (row.strategy, row.label), "question" if card is None else card.icon
    title, options = strategy_title(row.strategy), options_text(row.label)
    if line is None:
        awaited = plan.is_planning and not row.failure
        return PlanRowData(
            key, icon, title, options,
            is_pending=awaited,
            # Empty tracks reserve the row's height until its result arrives.
            num_tracks=_num_tracks(plan) if awaited else 0,
            # A problem that affects every row is shown above the table.
            reason="" if row.failure == plan.problem else row.failure,
            tooltip=row.failure,
            verdict_text=_missing_text(row, is_pending=awaited),
        )  # fmt: skip
    note, is_hot = _peak_note(line)
    verified, verified_word = _verification(plan, line)
    return PlanRowData(
        key, icon, title, options,
        is_chosen=plan.is_chosen(line),
        bars=bars(line),
        reason="" if line.devices else reason_text(line),
        peak=peak_text(line),
        peak_note=note,
        is_hot=is_hot,
        step=step_text(line.step),
        step_note=_step_note(line),
        verdict=line.verdict,
        verdict_text=verdict_text(line),
        verdict_note=free_memory_text(line),
        verification=verified,
        verification_text=verified_word,
        marks=marks,
        tooltip=tooltip(line, plan.verification.get_text(line)),
    )  # fmt: skip


def _verification(plan: DraftPlan, line: PlanLine) -> tuple[str, str]:
    """Return (outcome, short text) of the comparison with one device; both "" if not verified."""
    outcome = plan.verification.get_outcome(line) or ""
    if outcome == PENDING:
        return outcome, tr("verifying…")
    return outcome, tr(OUTCOME_TEXTS[outcome]) if outcome in OUTCOME_TEXTS else ""


def _missing_text(row: PlanRow, *, is_pending: bool) -> str:
    if is_pending:
        return tr("planning…")
    return tr("no result") if row.failure else tr("not planned")


def _num_tracks(plan: DraftPlan) -> int:
    return max((len(group_equal_devices(line.devices)) for line in plan.lines), default=_EXPECTED_DEVICES)


def bars(line: PlanLine) -> tuple[PlanBar, ...]:
    groups = group_equal_devices(line.devices)
    lead = lead_device(find_imbalance({index: group[0].total_bytes for index, group in enumerate(groups)}))
    return tuple(_bar(group, is_lead=index == lead) for index, group in enumerate(groups))


def _bar(group: Sequence[PlannedDevice], *, is_lead: bool) -> PlanBar:
    """Return one bar for devices with equal memory, labelled 'GPU 0', or 'GPU 0 ×512' for 512 devices."""
    device, many = group[0], f"×{len(group)}" if len(group) > 1 else ""
    label = f"{device_label(device)} {many}".rstrip()
    index = many or device_index(device)
    return PlanBar(label, device.total_bytes, tuple(segments(device)), is_lead, index)


def segments(device: PlannedDevice) -> Iterator[tuple[str, int]]:
    """Yield a bar's (kind, bytes): live bytes by kind, reserved but unused, driver, other processes."""
    for kind in KIND_LABELS:
        if device.by_kind.get(kind):
            yield kind, device.by_kind[kind]
    # If the reserved bytes are unknown, nothing counts as unused.
    unused_bytes = (device.reserved_bytes or device.active_bytes) - device.active_bytes
    rest = {RESERVED: unused_bytes, CONSTANTS: device.constants_bytes, OTHERS: device.others_bytes}
    yield from ((kind, num_bytes) for kind, num_bytes in rest.items() if num_bytes > 0)


def _peak_note(line: PlanLine) -> tuple[str, bool]:
    """Return (note, whether one device stands out). If one does, the note is the ratio of its memory to the
    others'. Otherwise it is "each" if all need the same memory, or the name of the fullest device."""
    if len(line.devices) < 2 or line.fullest_device is None:
        return "", False
    totals = [device.total_bytes for device in line.devices]
    imbalance = find_imbalance(dict(enumerate(totals)))
    if imbalance is not None and imbalance.is_notable and imbalance.ratio is not None:
        return tr("{ratio:.1f}× others", ratio=imbalance.ratio), True
    return (tr("each") if len(set(totals)) == 1 else device_label(line.fullest_device)), False


def _step_note(line: PlanLine) -> str:
    if line.largest_batch is not None:
        return tr("batch ≤ {size}", size=line.largest_batch)
    return tr("calibrated") if line.step is not None and line.step.calibrated else ""


def tooltip(line: PlanLine, verified: str = "") -> str:
    """Return a tooltip with the verdict and its reason, the notes, the fullest device's memory by kind, and
    `verified`, the text of the verification's result."""
    step = "" if line.step is None else tr("{time} a step", time=step_text(line.step))
    verdict = verdict_text(line)
    notes = (translate(note, line.phrases) for note in line.notes)
    candidates = (verdict[:1].upper() + verdict[1:], reason_text(line), html.escape(verified), *notes, step)
    texts = [text for text in candidates if text]
    heading = f"<b>{strategy_name(line)}</b> {options_text(line.label)}"
    fullest = line.fullest_device
    if fullest is None:
        return "<br>".join([heading, *texts])
    peak = tr("{device}: {size} predicted", device=device_label(fullest), size=peak_text(line))
    table = bytes_table((tr(SEGMENT_LABELS[kind]), num_bytes) for kind, num_bytes in segments(fullest))
    return "<br>".join([heading, *texts, peak]) + table


def stats(plan: DraftPlan) -> tuple[Stat, ...]:
    """Return cells for the target devices, for the chosen, recommended and least-memory strategies, and for
    the number of results."""
    lines = plan.lines
    cheapest, recommended, _ = plan.marks
    whose = tr("Predicted for") if plan.devices is not None else tr("Predicted for this run's devices")
    chosen = plan.chosen_line
    label = tr("Chosen: {strategy}", strategy=strategy_title(plan.chosen_strategy))
    answers = tr("Results so far") if plan.is_planning else tr("Results")
    count = Stat(answers, str(len(lines)), "88", short_label=tr("Results"))
    counted = (count,) if lines or plan.is_planning else ()
    return (
        Stat(whose, plan.target, plan.target, short_label=tr("Predicted for")),
        _stat(label, chosen, is_hot=chosen is not None and has_fit_problem(chosen)),
        _stat(_marked_label(RECOMMENDED, recommended), recommended),
        _stat(_marked_label(LEAST_MEMORY, cheapest), cheapest),
        *counted,
    )


def recommendation(plan: DraftPlan) -> str:
    """Return the recommended strategy with its options and the reason; "" if there is none."""
    _, recommended, reason = plan.marks
    if recommended is None:
        return ""
    name = ", ".join(filter(None, (strategy_name(recommended), options_text(recommended.label))))
    return tr("Recommended: {strategy}. {why}", strategy=name, why=reason)


def _marked_label(mark: str, line: PlanLine | None) -> str:
    return tr(mark) if line is None else tr(_STAT_LABELS[mark], strategy=strategy_name(line))


def _stat(label: str, line: PlanLine | None, *, is_hot: bool = False) -> Stat:
    return Stat(label, UNKNOWN if line is None else peak_text(line), "888.8 GiB", is_hot)


def subtitle(plan: DraftPlan) -> tuple[str, str]:
    """Return the subtitle of the table's card as (text, short text)."""
    lines = plan.lines
    capacity = scale(lines).capacity_bytes
    if capacity is not None:
        size = format_bytes(capacity, 0)
        return tr("peak of a step on each device, out of {size}", size=size), tr("out of {size}", size=size)
    if not lines:
        return "", ""
    text = tr("peak of a step on each device; no capacity is known, so bars are scaled to the largest peak")
    return text, tr("scaled to largest")


def legend_kinds(lines: Sequence[PlanLine], end_bytes: int) -> list[tuple[str, int]]:
    """Return (kind, largest bytes on one device) for each kind that takes at least 1 % of the scale on some
    device."""
    max_bytes: dict[str, int] = {}
    for line in lines:
        for device in line.devices:
            for kind, num_bytes in segments(device):
                max_bytes[kind] = max(max_bytes.get(kind, 0), num_bytes)
    return [(kind, max_bytes[kind]) for kind in SEGMENT_LABELS if max_bytes.get(kind, 0) >= 0.01 * end_bytes]


def fixes(plan: DraftPlan) -> list[PlanLine]:
    """Return advice if nothing fits, then the chosen strategy's fixes, the largest saving first."""
    strategy = None if plan.chosen_line is None else plan.chosen_line.strategy
    combined = [line for line in plan.fixes if line.saves_bytes is None]
    lines = (line for line in plan.fixes if line.saves_bytes is not None and line.strategy == strategy)
    return combined + sorted(lines, key=lambda line: -(line.saves_bytes or 0))


def csv_rows(plan: DraftPlan) -> Iterator[Sequence[object]]:
    """Yield one row per strategy and device, with memory in bytes and step times in seconds."""
    yield (
        "strategy", "options", "verdict", "device", "total_bytes", "capacity_bytes", *SEGMENT_LABELS,
        "step_low_s", "step_high_s", "one_device",
    )  # fmt: skip
    for line in plan.lines:
        times = ("", "") if line.step is None else (f"{line.step.low_s:.6g}", f"{line.step.high_s:.6g}")
        for device in line.devices:
            by_kind = dict(segments(device))
            yield (
                line.strategy, options_text(line.label), line.verdict, device_label(device),
                device.total_bytes, device.capacity_bytes,
                *(by_kind.get(kind, 0) for kind in SEGMENT_LABELS), *times,
                plan.verification.get_text(line),
            )  # fmt: skip
