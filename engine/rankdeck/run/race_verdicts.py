"""Compare the entries of a race: which losses agree, which entry is fastest, which entries are tied.

From the same seed, every strategy computes the same losses, so each loss is compared with that of a
reference: the entry of `single`, or else the first entry that completed. Sums in another order are rounded
differently, and an optimizer that divides by the magnitude of gradients amplifies the difference with every
step (2e-6 after 24 steps of AdamW with fsdp, 5e-8 after 5). So the tolerance of the parity tests applies to
the first steps, and fifty times that tolerance to later steps. If gradients are not synchronized, the
difference after two steps is a thousand times either tolerance. A strategy that is expected to give
different results is listed with the reason and does not fail the comparison.

An entry's time is the median of its step times. Two entries are distinguished if the confidence intervals of
their medians do not overlap and they differ by more than the machine's drift, which is measured by repeating
the first entry at the end. If only that drift keeps the leading entries from being distinguished, the race is
inconclusive. Read race.py first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from rankdeck.base.phrases import PhraseSource, join_phrases, phrase, tr_noop
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run.plan_marks import complexity
from rankdeck.run.problems import failed_problem
from rankdeck.run.race import (
    AGREES,
    COMPLETED,
    DIFFERS,
    EXPECTED,
    FAILED,
    REFERENCE,
    RUNNING,
    STOPPED,
    EntryMeasurement,
    LossAgreement,
    Race,
    RaceEntry,
    RaceVerdicts,
)
from rankdeck.run.run_state import RunState
from rankdeck.run.summary_builder import problems_of
from rankdeck.run.verified import verified_text
from rankdeck.run_dir import RunDir

LOSS_TOLERANCES = {"fp64": 1e-10}
"""Relative tolerances by precision; all other precisions use FP32_TOLERANCE."""
FP32_TOLERANCE = 2e-6
LATE_FACTOR = 50
"""Factor by which the tolerance is multiplied after the first steps."""
STRICT_STEPS = 10
_ROUNDING_TEXTS = {
    "bf16": tr_noop(
        "bf16 has only 3 significant digits: a different order of summation changes the last digit."
    ),
    "fp16": tr_noop(
        "fp16 has only 4 significant digits: a different order of summation changes the last digit."
    ),
}
_EXPECTED_DIFFERENCES = {"batch-norm-differs", "dropout-differs", "loss-differs"}
"""Codes of a run's notes (training/parity_notes.py) that explain why its losses differ."""
_REPORTED_DRIFT = 0.03
_NO_OTHER_TEXTS = (
    tr_noop("No other entry was as fast."),
    tr_noop("The only other entry that was as fast is {last}, which trains differently."),
    tr_noop("No other entry was as fast, except {others} and {last}, which train differently."),
)
"""Reasons why an entry is the fastest, by the number of entries that are as fast but train differently: none,
one or several."""
_SIMPLEST_TEXTS = (
    tr_noop("It is the simplest of {count} entries with indistinguishable times."),
    tr_noop(
        "It is the simplest of {count} entries with indistinguishable times, not counting {last}, which "
        "trains differently."
    ),
    tr_noop(
        "It is the simplest of {count} entries with indistinguishable times, not counting {others} and "
        "{last}, which train differently."
    ),
)


def judge(race: Race) -> None:
    """Compute the verdicts on the current entries and store them in the race."""
    reference = _find_reference(race)
    bar = LOSS_TOLERANCES.get(race.precision, FP32_TOLERANCE)
    drift = _measure_drift(race)
    for entry in race.entries:
        entry.place = None
        entry.agreement = None if reference is None else _loss_agreement(race, entry, reference, bar)
    slower = 1 + (drift or 0.0)
    groups = _group_by_speed(
        race, max(slower, 1 / slower) - 1
    )  # half the time counts as much as twice the time
    best, why = _find_fastest(groups, is_over=race.outcome != RUNNING)
    inconclusive = _inconclusive_text(drift or 0.0, groups, best)
    is_whole = race.outcome == RUNNING or race.num_finished == len(race.unique_entries)
    if inconclusive:
        best, why = None, ""
    elif not is_whole and sum(map(len, groups)) < 2:
        best, why = None, ""  # stopped before there was a second entry to compare with
    race.verdicts = RaceVerdicts(
        reference=None if reference is None else reference.number,
        bar=bar,
        late_bar=LATE_FACTOR * bar,
        drift=drift,
        fastest=None if best is None else best.number,
        fastest_why=why,
        # Times of a rehearsal say nothing about GPUs.
        winner=None if best is None or race.is_rehearsal else best.number,
        inconclusive=inconclusive,
        notes=_drift_notes(race, drift, groups, is_mentioned=bool(inconclusive)),
    )


def _find_reference(race: Race) -> RaceEntry | None:
    """Return the completed entry of `single`, else the first completed entry."""
    done = [entry for entry in race.unique_entries if entry.state == COMPLETED and entry.measured is not None]
    return next((entry for entry in done if entry.strategy == "single"), done[0] if done else None)


def _loss_agreement(race: Race, entry: RaceEntry, reference: RaceEntry, bar: float) -> LossAgreement | None:
    if entry.measured is None or reference.measured is None or entry.state != COMPLETED:
        return None
    if entry is reference:
        return LossAgreement(verdict=REFERENCE)
    apart = _differences(entry.measured.losses, reference.measured.losses)
    if not apart:
        why = phrase("No step has a recorded loss in both entries.")
        return LossAgreement(verdict=DIFFERS, reason=why, is_as_good=False)
    step, max_difference = max(apart, key=lambda item: item[1])
    # "not <=" instead of ">", so that a NaN counts as a difference.
    beyond = [(at, by) for at, by in apart if not by <= (bar if at <= STRICT_STEPS else LATE_FACTOR * bar)]
    if not beyond:
        return LossAgreement(verdict=AGREES, difference=max_difference, step=step)
    expected = _expected_difference(race, entry, reference)
    if expected is not None:
        expected.difference, expected.step = max_difference, step
        return expected
    first, by = beyond[0]
    allowed = bar if first <= STRICT_STEPS else LATE_FACTOR * bar
    return LossAgreement(
        verdict=DIFFERS,
        difference=max_difference,
        step=step,
        reason=phrase(
            "In step {step}, this entry's loss differs from that of {reference} by {apart:.1e}, but "
            "rounding explains only {allowed:.0e}. The cause is unknown.",
            step=first,
            reference=reference.label,
            apart=by,
            allowed=allowed,
        ),
        is_as_good=False,
    )


def _differences(
    losses: Sequence[float | None], reference: Sequence[float | None]
) -> list[tuple[int, float]]:
    """Return (step, relative difference) for each step whose loss is known in both lists."""
    pairs = enumerate(zip(losses, reference, strict=False), start=1)
    return [
        (step, abs(loss - other) / max(abs(other), 1e-12))
        for step, (loss, other) in pairs
        if loss is not None and other is not None
    ]


def _expected_difference(race: Race, entry: RaceEntry, reference: RaceEntry) -> LossAgreement | None:
    """Return why the entry's losses are expected to differ from those of the reference, and whether the entry
    trains as well as the reference; None if no difference is expected."""
    for candidate in (entry, reference):
        compress, why = candidate.options.get("compress", "none"), ""
        if STRATEGIES[candidate.strategy].is_stale:
            why = phrase(
                "{strategy} uses weights that are a few updates old, so it trains differently.",
                strategy=candidate.label,
            )
        elif compress != "none":
            why = phrase(
                "{strategy} rounds gradients to {compress} for communication, so it trains differently.",
                strategy=candidate.label,
                compress=compress,
            )
        if why:
            return LossAgreement(verdict=EXPECTED, reason=why, is_as_good=False)
    for candidate in (entry, reference):
        for code in sorted(_EXPECTED_DIFFERENCES & candidate.seen.keys()):
            return LossAgreement(verdict=EXPECTED, reason=candidate.seen[code], phrases=candidate.phrases)
    if race.precision in _ROUNDING_TEXTS:
        return LossAgreement(verdict=EXPECTED, reason=phrase(_ROUNDING_TEXTS[race.precision]))
    if race.allow_tf32 and not race.is_rehearsal:
        why = phrase(
            "TF32 has only 4 significant digits: a different order of summation changes the last digit."
        )
        return LossAgreement(verdict=EXPECTED, reason=why)
    return None


def _measure_drift(race: Race) -> float | None:
    for entry in race.entries:
        first = None if entry.repeats is None else race.entry(entry.repeats)
        if first is not None and first.median_s and entry.median_s:
            return entry.median_s / first.median_s - 1
    return None


def _group_by_speed(race: Race, drift: float) -> list[list[RaceEntry]]:
    """Group the completed entries by speed, fastest first.

    Entries that cannot be distinguished from the first entry of a group share its place.
    """
    timed = [
        entry for entry in race.unique_entries if entry.state == COMPLETED and entry.median_s is not None
    ]
    groups: list[list[RaceEntry]] = []
    position = 1
    for entry in sorted(timed, key=lambda item: item.median_s or 0.0):
        # Compared with the group's first entry, not its last: a chain of small differences would otherwise
        # tie entries that are far apart.
        if groups and not _can_distinguish(groups[-1][0], entry, drift):
            groups[-1].append(entry)
        else:
            groups.append([entry])
            position = 1 + sum(len(group) for group in groups[:-1])
        entry.place = position
    return groups


def _can_distinguish(faster: RaceEntry, slower: RaceEntry, drift: float) -> bool:
    assert faster.measured is not None and slower.measured is not None
    _, high_s = median_interval_s(faster.measured.step_s)
    low_s, _ = median_interval_s(slower.measured.step_s)
    apart = (slower.median_s or 0.0) / (faster.median_s or math.inf) - 1
    return high_s < low_s and apart > drift


def median_interval_s(times: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, for any distribution of the times."""
    times = sorted(times)
    # The rank of the median is binomial(n, 1/2): 1.96 standard deviations are 1.96 * sqrt(n) / 2.
    reach = 0.98 * math.sqrt(len(times))
    low = math.floor(len(times) / 2 - reach)
    high = math.ceil(len(times) / 2 + reach)
    return times[max(0, low)], times[min(len(times) - 1, high)]


def _drift_notes(
    race: Race, drift: float | None, groups: Sequence[Sequence[RaceEntry]], *, is_mentioned: bool
) -> list[str]:
    """Return notes on the drift of the step times during the race.

    If `is_mentioned` is true, another text states how large the drift is, so the notes omit that.
    """
    if drift is None:
        repeated = any(entry.repeats is not None and entry.is_over for entry in race.entries)
        unknown = phrase("The step times' drift is unknown: the repetition of the first entry was not timed.")
        return [unknown] if repeated else []
    tied = [group for group in groups if len(group) > 1]
    if is_mentioned:
        return [
            phrase(
                "The entries in positions {places} are indistinguishable.",
                places=join_phrases(map(_places_text, tied)),
            )
        ]
    if abs(drift) < _REPORTED_DRIFT or not tied:
        return [
            phrase(
                "Step times drifted by {drift:+.0f} % between the first entry and its repetition.",
                drift=drift * 100,
            )
        ]
    return [
        phrase(
            "Step times drifted by {drift:+.0f} % between the first entry and its repetition; the "
            "entries in positions {places} are indistinguishable.",
            drift=drift * 100,
            places=join_phrases(map(_places_text, tied)),
        )
    ]


def _places_text(group: Sequence[RaceEntry]) -> str:
    """Format the places of the entries in a group: '2 and 3', '4 to 7'."""
    first = group[0].place or 0
    last = first + len(group) - 1
    if len(group) == 2:
        return phrase("{first} and {last}", first=first, last=last)
    return phrase("{first} to {last}", first=first, last=last)


def _inconclusive_text(drift: float, groups: Sequence[Sequence[RaceEntry]], best: RaceEntry | None) -> str:
    """Return a sentence that calls the race inconclusive, or '' if it is not.

    A race is inconclusive if only the drift of the step times makes the leading entries indistinguishable.
    """
    first = next((group for group in groups if best in group), [])
    if abs(drift) < _REPORTED_DRIFT or not any(_can_distinguish(first[0], other, 0.0) for other in first[1:]):
        return ""
    return phrase(
        "Inconclusive: step times changed by {drift:.0f} % during the race.", drift=abs(drift) * 100
    )


def _find_fastest(groups: Sequence[Sequence[RaceEntry]], *, is_over: bool) -> tuple[RaceEntry | None, str]:
    """Return the simplest of the fastest entries that train as well as the reference, and why it was chosen.

    Until the race is over, return the fastest entry that trains as well as the reference.
    """
    passed: list[RaceEntry] = []
    for group in groups:
        fair = [
            entry for entry in group if entry.agreement is not None and entry.agreement.verdict != DIFFERS
        ]
        fair = [entry for entry in fair if entry.agreement is None or entry.agreement.is_as_good]
        passed += [entry for entry in group if entry not in fair]
        if not fair:
            continue
        best = min(fair, key=lambda entry: complexity(entry.predicted)) if is_over else fair[0]
        *others, last = [entry.label for entry in passed] or [""]
        text = (_NO_OTHER_TEXTS if len(fair) == 1 else _SIMPLEST_TEXTS)[min(len(passed), 2)]
        return best, phrase(text, count=len(fair), others=", ".join(others), last=last)
    return None, ""


# The result of a race's entry, from its run's state.


def finish_entry(race: Race, entry: RaceEntry, run: RunDir, state: RunState, seconds: float) -> None:
    """Store the result of an entry's run: measurements if it completed, the cause if it failed.

    `seconds` is the duration of the entry, including its start.
    """
    outcome = run.outcome()
    states = {COMPLETED: COMPLETED, STOPPED: STOPPED, RUNNING: STOPPED}  # running: the race has left it
    entry.state = states.get(outcome, FAILED)
    problems = problems_of(run, state, outcome)
    notes = [problem for problem in problems if problem.severity == "info"]
    entry.seen = {problem.code: problem.message for problem in notes}
    entry.phrases |= {
        problem.message: PhraseSource(problem.templates["message"], problem.arguments.get("message", {}))
        for problem in notes
        if "message" in problem.templates
    }
    if state.verified is not None:
        text = verified_text(state.verified)
        entry.verified, entry.verified_outcome = str(text), state.verified.outcome
        entry.phrases |= {str(text): PhraseSource(text.template, text.plain_arguments())}
    if entry.state == COMPLETED:
        entry.measured = _measure_entry(race, state, seconds)
    elif entry.state == FAILED:
        errors = [problem for problem in problems if problem.severity == "error"]
        entry.problem = errors[0] if errors else failed_problem(run)


def _measure_entry(race: Race, state: RunState, seconds: float) -> EntryMeasurement:
    steps = state.column("step")
    # First calls, and steps that the ledger tracks, are slower.
    late = steps > race.warm_up_steps
    times, samples = state.column("step_s")[late], state.column("samples")[late]
    losses: list[float | None] = [None] * race.steps
    for step, loss in zip(steps.astype(int).tolist(), state.column("loss").tolist(), strict=True):
        if 1 <= step <= race.steps and math.isfinite(loss):
            losses[step - 1] = loss
    with_both = np.isfinite(times) & np.isfinite(samples) & (times > 0)
    rates = (samples[with_both] / times[with_both]).tolist()
    sent = [sum(by_name.values()) for by_name in state.comm.values()]
    return EntryMeasurement(
        step_s=times[np.isfinite(times)].tolist(),
        samples_per_s=statistics.median(rates) if rates else None,
        peak_bytes=[device.peak_bytes for device in state.devices.values()],
        sent_bytes=sum(sent) if sent else None,
        losses=losses,
        seconds=seconds,
    )
