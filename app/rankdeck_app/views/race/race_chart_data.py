"""Builds the race page's data: plain functions, no widgets. Unknown values are shown as dashes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes, format_rate
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run import race as races
from rankdeck.run.race import Race, RaceEntry, remaining_text
from rankdeck.run.verified import DIFFERS, EQUAL, NOTED, ONE_DEVICE, OUTCOME_TEXTS
from rankdeck_app.language import tr, translate
from rankdeck_app.state.draft_race import RaceSnapshot
from rankdeck_app.state.plan_text import options_text, strategy_name, time_text
from rankdeck_app.widgets.chart import UNKNOWN
from rankdeck_app.widgets.stat_strip import Stat

CPU_TIMES_NOTE = tr_noop("These times are from this CPU. On GPUs, another strategy may be the fastest.")
LOSS_VERDICTS = {
    races.REFERENCE: ("circle", tr_noop("reference"), "muted"),
    races.AGREES: ("pass", tr_noop("agree"), "ok"),
    races.EXPECTED: ("info", tr_noop("as expected"), "muted"),
    races.DIFFERS: ("error", tr_noop("differ"), "error"),
}


@dataclass(frozen=True)
class RaceRow:
    """A table row: one entry. Times are in seconds; `progress` is the fraction of a running entry's steps
    that are complete.

    80 % of the steps take between `low_s` and `high_s`; `predicted_s` is the range that the plan predicted.
    `status` is a text shown in place of the bars if no bars can be drawn.
    """

    key: int
    icon: str
    title: str
    options: str
    position: str = ""
    is_fastest: bool = False
    is_dim: bool = False
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    predicted_s: tuple[float, float] | None = None
    progress: float | None = None
    time: str = UNKNOWN
    rate: str = ""
    peak: str = UNKNOWN
    predicted_peak: str = ""
    sent: str = UNKNOWN
    losses_icon: str = ""
    losses: str = ""
    losses_note: str = ""
    verification: str = ""
    tone: str = "muted"
    status: str = ""
    status_tone: str = "muted"
    tooltip: str = ""

    @property
    def description(self) -> str:
        """The row's text for screen readers."""
        position_text = tr("position {place}", place=self.position) if self.position else ""
        time = tr("{time} a step", time=self.time) if self.step_s is not None else ""
        how = f"{self.losses} {self.losses_note}".strip()
        losses = tr("losses {how}", how=how) if self.losses else ""
        verified = OUTCOME_TEXTS.get(self.verification)
        one_device = f"{tr(ONE_DEVICE)}: {tr(verified)}" if verified else ""
        texts = (
            position_text,
            self.title,
            self.options,
            time,
            self.rate,
            self.peak,
            losses,
            one_device,
            self.status,
        )
        return ", ".join(text for text in texts if text and text != UNKNOWN)


def rows(snapshot: RaceSnapshot) -> list[RaceRow]:
    """Return rows for the entries with a step time, fastest first, then for running and waiting entries, then
    for failed entries and excluded strategies."""
    race = snapshot.race
    if race is None:
        return []
    # While the race runs, its repetition has a row too, because that may be the running entry.
    entries = race.entries if race.outcome == races.RUNNING else race.unique_entries
    # The sort is stable: entries without a time keep the race's order.
    in_order = sorted(
        entries, key=lambda entry: (entry.is_over and not entry.median_s, entry.median_s or math.inf)
    )
    return [*(_row(race, entry, snapshot.step) for entry in in_order), *_excluded_rows(race)]


def _excluded_rows(race: Race) -> Iterator[RaceRow]:
    """Yield rows for the strategies that the plan excluded. Their keys are negative, so that they never equal
    an entry's key."""
    for number, line in enumerate(race.left_out, start=1):
        card = STRATEGIES.get(line.label.partition(",")[0])
        reason = translate(line.reason or "", line.phrases)
        yield RaceRow(
            -number,
            "question" if card is None else card.icon,
            line.label if card is None else tr(card.title),
            options_text(line.label),
            is_dim=True,
            status=tr("Left out: {reason}", reason=reason or tr(line.verdict)),
            tooltip=reason,
        )


def _row(race: Race, entry: RaceEntry, step: int) -> RaceRow:
    card, measured, predicted = STRATEGIES.get(entry.strategy), entry.measured, entry.predicted
    again = tr("repeat") if entry.repeats is not None else ""
    options = " · ".join(filter(None, (again, options_text(entry.label))))
    shared = sum(other.place == entry.place for other in race.unique_entries) > 1
    status, words_tone = _status_text(entry)
    icon, losses, note, tone = _loss_verdict(entry)
    return RaceRow(
        entry.number,
        "question" if card is None else card.icon,
        entry.strategy if card is None else tr(card.title),
        options,
        position="" if entry.place is None else f"{entry.place}{'=' if shared else ''}",
        is_fastest=entry.number == race.verdicts.fastest and race.outcome != races.RUNNING,
        is_dim=entry.state in (races.WAITING, races.STOPPED),
        step_s=entry.median_s,
        low_s=None if measured is None else measured.quantile_s(0.1),
        high_s=None if measured is None else measured.quantile_s(0.9),
        predicted_s=None if predicted.step is None else (predicted.step.low_s, predicted.step.high_s),
        progress=step / race.steps if entry.state == races.RUNNING else None,
        time=UNKNOWN if entry.median_s is None else time_text(entry.median_s),
        rate=_rate_text(entry),
        peak=_fullest_text(measured.peak_bytes) if measured is not None else UNKNOWN,
        predicted_peak=_predicted_text(entry) if measured is not None else "",
        sent=_bytes_text(None if measured is None else measured.sent_bytes),
        losses_icon=icon,
        losses=losses,
        losses_note=note,
        verification=entry.verified_outcome or "",
        tone=tone,
        status=status,
        status_tone=words_tone,
        tooltip=_tooltip(entry),
    )  # fmt: skip


def _status_text(entry: RaceEntry) -> tuple[str, str]:
    if entry.state == races.FAILED:
        return (entry.problem.headline() if entry.problem else tr("failed")), "error"
    if entry.state == races.WAITING:
        return tr("waiting"), "muted"
    if entry.state == races.STOPPED:
        return tr("stopped early"), "muted"
    return "", "muted"


def _loss_verdict(entry: RaceEntry) -> tuple[str, str, str, str]:
    """Return (icon, text, note, tone) that show whether the entry's losses agree with the reference's."""
    agreement = entry.agreement
    if agreement is None:
        return "", "", "", "muted"
    icon, label, tone = LOSS_VERDICTS[agreement.verdict]
    difference = agreement.difference
    if difference is None:
        return icon, tr(label), "", tone
    apart = tr("{share} apart", share=difference_text(difference)) if difference else tr("to the last bit")
    return icon, tr(label), apart, tone


def _tooltip(entry: RaceEntry) -> str:
    lines = [", ".join(filter(None, (strategy_name(entry.predicted), options_text(entry.label))))]
    if entry.problem is not None:
        lines.append(entry.problem.text())
    if entry.agreement is not None and entry.agreement.reason:
        lines.append(translate(entry.agreement.reason, entry.agreement.phrases))
    if entry.verified:
        lines.append(translate(entry.verified, entry.phrases))
    measured = entry.measured
    if measured is not None:
        # A race measures live tensors, so `active_bytes` is the comparable prediction.
        planned = {device.device: device.active_bytes for device in entry.predicted.devices}
        # Eight devices keep the tooltip readable.
        for device_index, num_bytes in enumerate(measured.peak_bytes[:8]):
            peak = _bytes_text(num_bytes)
            if device_index not in planned:
                lines.append(tr("device {device}: {size}", device=device_index, size=peak))
                continue
            expected = format_bytes(planned[device_index])
            text = tr(
                "device {device}: {size}, {expected} predicted",
                device=device_index,
                size=peak,
                expected=expected,
            )
            lines.append(text)
    return "\n".join(lines)


def _rate_text(entry: RaceEntry) -> str:
    rate = None if entry.measured is None else entry.measured.samples_per_s
    return "" if rate is None else tr("{rate} samples/s", rate=format_rate(rate))


def _bytes_text(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else format_bytes(num_bytes)


def _fullest_text(sizes: Sequence[int | None]) -> str:
    known_sizes = [size for size in sizes if size is not None]
    return _bytes_text(max(known_sizes, default=None))


def _predicted_text(entry: RaceEntry) -> str:
    devices = entry.predicted.devices
    if not devices:
        return ""
    return tr("plan {size}", size=format_bytes(max(device.active_bytes for device in devices)))


def difference_text(difference: float) -> str:
    return f"{difference * 100:.0f} %" if difference >= 0.01 else f"{difference:.0e}"


def max_step_s(race_rows: Sequence[RaceRow]) -> float:
    """Return the upper end of the step time scale, in seconds."""
    times = [time for row in race_rows for time in (row.high_s, row.step_s) if time is not None]
    # Not 0, because the widths of bars are divided by it.
    return max(times, default=1.0)


def stats(snapshot: RaceSnapshot) -> tuple[Stat, ...]:
    race = snapshot.race
    if race is None:
        return ()
    agreements = [
        entry.agreement
        for entry in race.entries
        if entry.agreement and entry.agreement.verdict != races.REFERENCE
    ]
    agreeing = sum(agreement.verdict == races.AGREES for agreement in agreements)
    best, drift = race.entry(race.verdicts.fastest), race.verdicts.drift
    fastest = UNKNOWN if best is None or best.median_s is None else time_text(best.median_s)
    inconclusive = tr("inconclusive") if race.verdicts.inconclusive else ""
    left = (
        (Stat(tr("Time left"), translate(remaining_text(race)), ""),) if race.outcome == races.RUNNING else ()
    )
    return (
        Stat(tr("Raced"), _count_text(race.num_finished, len(race.unique_entries)), _count_text(88, 88)),
        *left,
        Stat(
            tr("Losses that agree"),
            _count_text(agreeing, len(agreements)) if agreements else UNKNOWN,
            _count_text(88, 88),
            any(agreement.verdict == races.DIFFERS for agreement in agreements),
        ),
        Stat(_fastest_label(race, best), inconclusive or fastest, inconclusive or "888.8 ms"),
        Stat(
            tr("Step time drift"),
            UNKNOWN if drift is None else f"{drift * 100:+.0f} %",
            "+88 %",
            bool(inconclusive),
        ),
    )


def _count_text(count: int, total: int) -> str:
    return tr("{count} of {total}", count=count, total=total)


def _fastest_label(race: Race, best: RaceEntry | None) -> str:
    name = "" if best is None else strategy_name(best.predicted)
    if race.outcome == races.RUNNING:
        return tr("Fastest so far: {strategy}", strategy=name) if name else tr("Fastest so far")
    alike = 0 if best is None else sum(entry.place == best.place for entry in race.unique_entries)
    if alike > 1:
        return tr("Simplest of the {count} fastest: {strategy}", count=alike, strategy=name)
    return tr("Fastest: {strategy}", strategy=name) if name else tr("Fastest")


def notes(race: Race) -> list[str]:
    """Return notes on facts that the table does not show, one sentence each."""
    sentences = []
    best = race.entry(race.verdicts.fastest)
    if race.outcome == races.STOPPED:
        sentences.append(tr("The race was stopped. Its measurements so far are kept."))
    elif race.outcome == races.LOST:
        sentences.append(tr("The race process ended unexpectedly. Its measurements so far are kept."))
    elif race.outcome == races.COMPLETED and best is not None:
        name = ", ".join(filter(None, (strategy_name(best.predicted), options_text(best.label))))
        why = translate(race.verdicts.fastest_why, race.verdicts.phrases)
        sentences.append(tr("Fastest: {strategy}. {why}", strategy=name, why=why))
    if race.verdicts.inconclusive:
        again = tr("Run the race again when nothing else is using the machine.")
        sentences.append(f"{translate(race.verdicts.inconclusive, race.verdicts.phrases)} {again}")
    sentences += [translate(note, race.verdicts.phrases) for note in race.verdicts.notes]
    sentences += _verification_notes(race)
    for entry in race.unique_entries:
        agreement = entry.agreement
        if agreement is not None and agreement.verdict == races.DIFFERS and agreement.reason:
            sentences.append(f"{entry.label}: {translate(agreement.reason, agreement.phrases)}")
    if race.is_rehearsal:
        sentences.append(tr(CPU_TIMES_NOTE))
    return sentences


def _verification_notes(race: Race) -> Iterator[str]:
    """Yield a sentence on how many entries give the same result as one device, then a sentence on
    each entry whose verification had a different outcome."""
    verified = [entry for entry in race.unique_entries if entry.verified_outcome in (EQUAL, NOTED, DIFFERS)]
    if verified:
        count = sum(entry.verified_outcome == EQUAL for entry in verified)
        yield tr(
            "Verified: the same result as one device for {count} of {total}.",
            count=count,
            total=len(verified),
        )
    for entry in race.unique_entries:
        if entry.verified_outcome not in (None, EQUAL):
            yield f"{entry.label}: {translate(entry.verified, entry.phrases)}."


def csv_rows(snapshot: RaceSnapshot) -> Iterator[Sequence[object]]:
    """Yield one row per entry and step with the step's loss and, if the step was timed, its time in
    seconds."""
    yield ("strategy", "options", "repeated", "step", "step_s", "loss")
    race = snapshot.race
    for entry in race.entries if race is not None else ():
        measured = entry.measured
        if race is None or measured is None:
            continue
        for at, loss in enumerate(measured.losses):
            # Warm-up steps are not timed, so `step_s` starts after them.
            timed = at - race.warm_up_steps
            step_s = measured.step_s[timed] if 0 <= timed < len(measured.step_s) else ""
            yield (entry.strategy, options_text(entry.label), entry.repeats is not None, at + 1, step_s, loss)
