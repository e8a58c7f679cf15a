"""Print a race in the terminal: a line per finished entry, then ranking, memory and agreement of losses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from rankdeck.base.errors import Problem
from rankdeck.base.units import format_rate
from rankdeck.cli import console
from rankdeck.cli.formatting import UNKNOWN, empty_table, size_text, sizes_text
from rankdeck.run.race import (
    AGREES,
    COMPLETED,
    DIFFERS,
    EXPECTED,
    FAILED,
    REFERENCE,
    STOPPED,
    LossAgreement,
    Race,
    RaceEntry,
    duration_text,
)
from rankdeck.run.race_verdicts import STRICT_STEPS
from rankdeck.run.verified import EQUAL, NOTED, OUTCOME_TEXTS, UNCHECKED
from rankdeck.run_dir import RaceDir

_LABEL_WIDTH = 40
_STYLES = {REFERENCE: "dim", AGREES: "green", EXPECTED: "yellow", DIFFERS: "bold red"}
CPU_TIMES_NOTE = "These times are from this CPU. On GPUs, another strategy may be the fastest."


def race_introduction(race: Race) -> str:
    """Return text that announces the race: strategies, devices, steps, seed and expected duration."""
    count = len(race.unique_entries)
    what = f"{count} {'strategies' if count > 1 else 'strategy'} on {_devices_text(race)}"
    text = f"{what}, {race.steps} steps each with seed {race.seed}, the first {race.warm_up_steps} not timed"
    text += f"; {duration_text([entry.predicted for entry in race.unique_entries], race.steps)}"
    return f"{text}. {CPU_TIMES_NOTE}" if race.is_rehearsal else text


def _devices_text(race: Race) -> str:
    count = len(race.devices)
    if race.is_rehearsal:
        return f"{count} virtual device{'s' if count > 1 else ''}"
    return f"{count} x {', '.join(dict.fromkeys(device.name for device in race.devices))}"


def entry_line(race: Race, entry: RaceEntry) -> Text:
    """Return text such as '3/18  ddp   412.3 ms a step  77.6 samples/s  agree, 1.2e-07 apart in step 12'."""
    # Plus the final repeat of an entry, which measures the machine's drift.
    total = len(race.unique_entries) + 1
    line = Text(f"{entry.number}/{total}".rjust(7) + "  ", style="dim")
    label = f"{entry.label} again" if entry.repeats is not None else entry.label
    line.append(f"{label}  ".ljust(_LABEL_WIDTH), style="default not dim")
    if entry.state == FAILED:
        line.append("failed", style="bold red not dim")
        return line.append_text(_problem_text(entry.problem))
    if entry.state != COMPLETED or entry.measured is None:
        return line.append("stopped", style="yellow not dim")
    line.append(f"{_duration_text(entry.median_s)} a step".rjust(18), style="default not dim")
    line.append(f"  {_rate_text(entry)} samples/s".rjust(20), style="default not dim")
    line.append("  ")
    return line.append_text(_agreement_text(entry.agreement))


def _problem_text(problem: Problem | None) -> Text:
    if problem is None:
        return Text("")
    lines = [line for line in problem.text().splitlines() if line]
    return Text("".join(f"\n{' ' * 9}{line}" for line in lines), style="default not bold not dim")


def _agreement_text(agreement: LossAgreement | None) -> Text:
    if agreement is None:
        return Text(UNKNOWN, style="dim")
    apart = "" if agreement.difference is None else _difference_text(agreement.difference)
    text = {
        REFERENCE: "the reference",
        AGREES: f"agree, {apart} apart in step {agreement.step}",
        EXPECTED: f"{apart} apart, as expected",
        DIFFERS: f"DIFFER, {apart} apart in step {agreement.step}",
    }[agreement.verdict]
    if agreement.verdict == AGREES and not agreement.difference:
        text = "agree to the last bit"
    return Text(text, style=f"{_STYLES[agreement.verdict]} not dim" if text != "the reference" else "dim")


def print_race(folder: RaceDir, race: Race, *, with_failures: bool = True) -> None:
    """Print the ranking, memory and notes; `with_failures` adds the reasons why entries failed."""
    out = console.out()
    timed = sorted(
        (entry for entry in race.unique_entries if entry.place is not None),
        key=lambda entry: (entry.place, entry.median_s),
    )
    if timed:
        out.print()
        out.print(_ranking_table(race, timed))
        out.print(f"\nmemory at each device's peak, {race.source}", style="dim", soft_wrap=True)
        out.print(_memory_table(timed))
        out.print()
    for label, text in (*_note_rows(race, with_failures=with_failures), ("race", str(folder.path))):
        out.print(Text(label.ljust(13), style="dim").append(text, style="default not dim"), soft_wrap=True)


def _ranking_table(race: Race, timed: Sequence[RaceEntry]) -> Table:
    table, has_verified = empty_table(), any(entry.verified_outcome for entry in timed)
    for heading, justify in (
        ("", "right"),
        ("strategy", "left"),
        ("step", "right"),
        ("p10 to p90", "right"),
        ("samples/s", "right"),
        ("sent per step", "right"),
        ("losses", "left"),
        *([("one device", "left")] if has_verified else []),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for entry in timed:
        shared = sum(other.place == entry.place for other in timed) > 1
        table.add_row(
            f"{entry.place}{'=' if shared else ' '}",
            Text(entry.label, style="bold" if entry.number == race.verdicts.fastest else ""),
            _duration_text(entry.median_s),
            _spread_text(entry),
            _rate_text(entry),
            size_text(None if entry.measured is None else entry.measured.sent_bytes),
            _agreement_text(entry.agreement),
            *([_verified_text(entry)] if has_verified else []),
        )
    return table


def _verified_text(entry: RaceEntry) -> Text:
    outcome = entry.verified_outcome or ""
    style = "green" if outcome == EQUAL else "yellow" if outcome == UNCHECKED else ""
    return Text(OUTCOME_TEXTS.get(outcome, UNKNOWN), style=style)


def _memory_table(timed: Iterable[RaceEntry]) -> Table:
    """Return a table of the measured and predicted peaks of live tensors, in bytes per device."""
    table = empty_table()
    for heading in ("strategy", "measured", "predicted"):
        table.add_column(heading)
    for entry in timed:
        predicted = [device.active_bytes for device in entry.predicted.devices]
        bound = f"at {entry.predicted.bound} " if entry.predicted.bound and predicted else ""
        measured = [] if entry.measured is None else entry.measured.peak_bytes
        table.add_row(entry.label, sizes_text(measured), bound + sizes_text(predicted))
    return table


def _note_rows(race: Race, *, with_failures: bool) -> Iterable[tuple[str, str]]:
    """Yield (label, text) for facts that the tables do not show; if `with_failures` is True, also for why
    entries failed."""
    verdicts = race.verdicts
    if race.outcome == STOPPED:
        yield (
            "stopped",
            f"{race.num_finished} of {len(race.unique_entries)} finished; their measurements are kept.",
        )
    elif race.outcome == "lost":
        yield "lost", "The race process ended unexpectedly. Its measurements so far are kept."
    yield from _loss_rows(race)
    for entry in race.unique_entries:
        if entry.verified_outcome in (NOTED, UNCHECKED):
            yield "one device", f"{entry.label}: {entry.verified}"
    for note in verdicts.notes:
        yield "drift", note
    if verdicts.inconclusive:
        yield "fastest", f"{verdicts.inconclusive} Race again when nothing else uses the machine."
    best = race.entry(verdicts.fastest)
    if best is not None:
        yield "fastest", f"{best.label}. {verdicts.fastest_why}"
        if race.is_rehearsal:
            yield "", CPU_TIMES_NOTE
    for entry in race.unique_entries:
        if with_failures and entry.state == FAILED and entry.problem is not None:
            yield "failed", f"{entry.label}: {entry.problem.headline()}"
    for excluded in race.left_out:
        yield "left out", f"{excluded.label}: {excluded.reason or excluded.verdict}"


def _loss_rows(race: Race) -> Iterable[tuple[str, str]]:
    """Yield a row with the number of entries whose losses agree with the reference, and for each entry whose
    losses differ, a row with the reason."""
    reference, bar = race.entry(race.verdicts.reference), race.verdicts.bar
    if reference is None or bar is None:
        return
    others = [entry for entry in race.entries if entry.agreement is not None and entry is not reference]
    agreeing = [entry for entry in others if entry.agreement and entry.agreement.verdict == AGREES]
    if others:
        yield (
            "losses",
            f"{len(agreeing)} of {len(others)} agree with {reference.label} in every step: within {bar:.0e} "
            f"of the loss in the first {STRICT_STEPS} steps, within {race.verdicts.late_bar:.0e} afterwards.",
        )
    for entry in race.unique_entries:
        agreement = entry.agreement
        if agreement is not None and agreement.verdict in (EXPECTED, DIFFERS) and agreement.reason:
            yield (
                ("as expected" if agreement.verdict == EXPECTED else "DIFFERS"),
                f"{entry.label}: {agreement.reason}",
            )


def _difference_text(difference: float) -> str:
    """Return text such as '1.2e-07', or '87 %' for a difference of 1 % or more."""
    return f"{difference * 100:.0f} %" if difference >= 0.01 else f"{difference:.1e}"


def _duration_text(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f} ms"


def _spread_text(entry: RaceEntry) -> str:
    """Return the range of step times from the 10th to the 90th percentile."""
    measured = entry.measured
    low, high = (None, None) if measured is None else (measured.quantile_s(0.1), measured.quantile_s(0.9))
    if low is None or high is None:
        return UNKNOWN
    low_text, high_text = _duration_text(low), _duration_text(high)
    same_unit = low_text.split()[1] == high_text.split()[1]
    return f"{low_text.split()[0] if same_unit else low_text} to {high_text}"


def _rate_text(entry: RaceEntry) -> str:
    rate = None if entry.measured is None else entry.measured.samples_per_s
    return UNKNOWN if rate is None else format_rate(rate)
