"""What the entries of a race say together: whether losses agree, who is fastest, what is not told apart.

Losses. From one seed every strategy computes the same, so each loss is held to the reference's: the entry of
`single`, or the first that completed. Sums in another order round otherwise, and an optimizer that divides by
the size of gradients makes more of that with every step (2e-6 after 24 steps of AdamW under fsdp, 5e-8 after
5): so the bar of the parity tests holds for the first steps, and later ones have fifty times as much. Ranks
whose gradients do not meet are a thousand times beyond either after two steps. What is known to compute
something else is told with its reason, and has not failed.

Times. An entry's time is its median step. Two are told apart where the intervals of their medians do not
overlap and they are further apart than the machine drifted, which the entry that ran first and once more at
the end shows. Where only that drift keeps the first ones from being told apart, the race is inconclusive.
Read race.py before.
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
"""By precision; of every other one the bar is that of fp32."""
FP32_TOLERANCE = 2e-6
LATE_FACTOR = 50
"""How many times the bar losses may be apart after the first steps."""
STRICT_STEPS = 10
_ROUNDING_TEXTS = {
    "bf16": tr_noop("bf16 keeps 3 digits: sums in another order differ in the last of them."),
    "fp16": tr_noop("fp16 keeps 4 digits: sums in another order differ in the last of them."),
}
_EXPECTED_DIFFERENCES = {"batch-norm-differs", "dropout-differs", "loss-differs"}
"""Codes of what a run tells of itself before or after its first step (training/parity_notes.py)."""
_REPORTED_DRIFT = 0.03
_NO_OTHER_TEXTS = (
    tr_noop("No other was as fast."),
    tr_noop("No other was as fast; {last} does not train the same."),
    tr_noop("No other was as fast; {others} and {last} do not train the same."),
)
"""Why an entry is the fastest: where nobody, one, or several were as fast and do not train the same."""
_SIMPLEST_TEXTS = (
    tr_noop("It is the simplest of {count} that are not told apart."),
    tr_noop("It is the simplest of {count} that are not told apart; {last} does not train the same."),
    tr_noop(
        "It is the simplest of {count} that are not told apart; {others} and {last} do not train the same."
    ),
)


def judge(race: Race) -> None:
    """Work out what is known by now, and write it into the race."""
    reference = _find_reference(race)
    bar = LOSS_TOLERANCES.get(race.precision, FP32_TOLERANCE)
    drift = _measure_drift(race)
    for entry in race.entries:
        entry.place = None
        entry.agreement = None if reference is None else _loss_agreement(race, entry, reference, bar)
    slower = 1 + (drift or 0.0)
    groups = _group_by_speed(
        race, max(slower, 1 / slower) - 1
    )  # half the time is as far off as twice the time
    best, why = _find_fastest(groups, is_over=race.outcome != RUNNING)
    inconclusive = _inconclusive_text(drift or 0.0, groups, best)
    is_whole = race.outcome == RUNNING or race.num_finished == len(race.unique_entries)
    if inconclusive:
        best, why = None, ""
    elif not is_whole and sum(map(len, groups)) < 2:
        best, why = None, ""  # it was stopped before there was anything to be faster than
    race.verdicts = RaceVerdicts(
        reference=None if reference is None else reference.number,
        bar=bar,
        late_bar=LATE_FACTOR * bar,
        drift=drift,
        fastest=None if best is None else best.number,
        fastest_why=why,
        winner=None if best is None or race.is_rehearsal else best.number,
        inconclusive=inconclusive,
        notes=_drift_notes(race, drift, groups, is_mentioned=bool(inconclusive)),
    )


def _find_reference(race: Race) -> RaceEntry | None:
    """`single` where it has completed, else the first entry that has."""
    done = [entry for entry in race.unique_entries if entry.state == COMPLETED and entry.measured is not None]
    return next((entry for entry in done if entry.strategy == "single"), done[0] if done else None)


def _loss_agreement(race: Race, entry: RaceEntry, reference: RaceEntry, bar: float) -> LossAgreement | None:
    if entry.measured is None or reference.measured is None or entry.state != COMPLETED:
        return None
    if entry is reference:
        return LossAgreement(verdict=REFERENCE)
    apart = _differences(entry.measured.losses, reference.measured.losses)
    if not apart:
        why = phrase("No step's loss is known under both.")
        return LossAgreement(verdict=DIFFERS, reason=why, is_as_good=False)
    step, most = max(apart, key=lambda item: item[1])
    beyond = [(at, by) for at, by in apart if not by <= (bar if at <= STRICT_STEPS else LATE_FACTOR * bar)]
    if not beyond:
        return LossAgreement(verdict=AGREES, difference=most, step=step)
    expected = _expected_difference(race, entry, reference)
    if expected is not None:
        expected.difference, expected.step = most, step
        return expected
    first, by = beyond[0]
    allowed = bar if first <= STRICT_STEPS else LATE_FACTOR * bar
    return LossAgreement(
        verdict=DIFFERS,
        difference=most,
        step=step,
        reason=phrase(
            "From step {step} on its losses are not those of {reference}: {apart:.1e} apart, where rounding "
            "explains {allowed:.0e}. It does not train the same, and nothing says that it should not.",
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
    """(step, relative difference) wherever both are known."""
    pairs = enumerate(zip(losses, reference, strict=False), start=1)
    return [
        (step, abs(one - other) / max(abs(other), 1e-12))
        for step, (one, other) in pairs
        if one is not None and other is not None
    ]


def _expected_difference(race: Race, entry: RaceEntry, reference: RaceEntry) -> LossAgreement | None:
    """Why it is known beforehand that losses differ, and whether what is trained is as good; else None."""
    for one in (entry, reference):
        compress, why = one.options.get("compress", "none"), ""
        if STRATEGIES[one.strategy].is_stale:
            why = phrase(
                "{strategy} steps with weights that are a few updates old: it trains otherwise.",
                strategy=one.label,
            )
        elif compress != "none":
            why = phrase(
                "{strategy} rounds gradients to {compress} on their way: it trains otherwise.",
                strategy=one.label,
                compress=compress,
            )
        if why:
            return LossAgreement(verdict=EXPECTED, reason=why, is_as_good=False)
    for one in (entry, reference):
        for code in sorted(_EXPECTED_DIFFERENCES & one.seen.keys()):
            return LossAgreement(verdict=EXPECTED, reason=one.seen[code], phrases=one.phrases)
    if race.precision in _ROUNDING_TEXTS:
        return LossAgreement(verdict=EXPECTED, reason=phrase(_ROUNDING_TEXTS[race.precision]))
    if race.allow_tf32 and not race.is_rehearsal:
        why = phrase("TF32 keeps 4 digits: sums in another order differ in the last of them.")
        return LossAgreement(verdict=EXPECTED, reason=why)
    return None


def _measure_drift(race: Race) -> float | None:
    for entry in race.entries:
        first = None if entry.repeats is None else race.entry(entry.repeats)
        if first is not None and first.median_s and entry.median_s:
            return entry.median_s / first.median_s - 1
    return None


def _group_by_speed(race: Race, drift: float) -> list[list[RaceEntry]]:
    """Entries that completed, the fastest first; those that are not told apart from the first of a group
    share its place."""
    timed = [
        entry for entry in race.unique_entries if entry.state == COMPLETED and entry.median_s is not None
    ]
    groups: list[list[RaceEntry]] = []
    place = 1
    for entry in sorted(timed, key=lambda one: one.median_s or 0.0):
        if groups and not _can_distinguish(groups[-1][0], entry, drift):
            groups[-1].append(entry)
        else:
            groups.append([entry])
            place = 1 + sum(len(group) for group in groups[:-1])
        entry.place = place
    return groups


def _can_distinguish(faster: RaceEntry, slower: RaceEntry, drift: float) -> bool:
    assert faster.measured is not None and slower.measured is not None
    _, high_s = median_interval_s(faster.measured.step_s)
    low_s, _ = median_interval_s(slower.measured.step_s)
    apart = (slower.median_s or 0.0) / (faster.median_s or math.inf) - 1
    return high_s < low_s and apart > drift


def median_interval_s(times: Sequence[float]) -> tuple[float, float]:
    """Between which times the median lies, 95 times of 100, whatever the shape of the times."""
    times = sorted(times)
    reach = 0.98 * math.sqrt(len(times))
    low = math.floor(len(times) / 2 - reach)
    high = math.ceil(len(times) / 2 + reach)
    return times[max(0, low)], times[min(len(times) - 1, high)]


def _drift_notes(
    race: Race, drift: float | None, groups: Sequence[Sequence[RaceEntry]], *, is_mentioned: bool
) -> list[str]:
    """`is_mentioned`: how much it is stands in another sentence already."""
    if drift is None:
        repeated = any(entry.repeats is not None and entry.is_over for entry in race.entries)
        unknown = phrase("How much the machine drifted is not known: the repetition was not timed.")
        return [unknown] if repeated else []
    tied = [group for group in groups if len(group) > 1]
    if is_mentioned:
        return [phrase("Places {places} are not told apart.", places=join_phrases(map(_places_text, tied)))]
    if abs(drift) < _REPORTED_DRIFT or not tied:
        return [
            phrase(
                "The machine drifted by {drift:+.0f} % between the first entry and its repetition.",
                drift=drift * 100,
            )
        ]
    return [
        phrase(
            "The machine drifted by {drift:+.0f} % between the first entry and its repetition; places "
            "{places} are not told apart.",
            drift=drift * 100,
            places=join_phrases(map(_places_text, tied)),
        )
    ]


def _places_text(group: Sequence[RaceEntry]) -> str:
    """'2 and 3', '4 to 7': the places that entries of one group would have."""
    first = group[0].place or 0
    last = first + len(group) - 1
    if len(group) == 2:
        return phrase("{first} and {last}", first=first, last=last)
    return phrase("{first} to {last}", first=first, last=last)


def _inconclusive_text(drift: float, groups: Sequence[Sequence[RaceEntry]], best: RaceEntry | None) -> str:
    """A sentence where the first ones would be told apart but for the drift; else ''."""
    first = next((group for group in groups if best in group), [])
    if abs(drift) < _REPORTED_DRIFT or not any(_can_distinguish(first[0], other, 0.0) for other in first[1:]):
        return ""
    return phrase(
        "Inconclusive: machine speed changed by {drift:.0f} % during the race.", drift=abs(drift) * 100
    )


def _find_fastest(groups: Sequence[Sequence[RaceEntry]], *, is_over: bool) -> tuple[RaceEntry | None, str]:
    """The simplest of the fastest that train the same; while the race goes on the one with the least time."""
    passed: list[RaceEntry] = []
    for group in groups:
        fair = [one for one in group if one.agreement is not None and one.agreement.verdict != DIFFERS]
        fair = [one for one in fair if one.agreement is None or one.agreement.is_as_good]
        passed += [one for one in group if one not in fair]
        if not fair:
            continue
        best = min(fair, key=lambda one: complexity(one.predicted)) if is_over else fair[0]
        *others, last = [one.label for one in passed] or [""]
        said = (_NO_OTHER_TEXTS if len(fair) == 1 else _SIMPLEST_TEXTS)[min(len(passed), 2)]
        return best, phrase(said, count=len(fair), others=", ".join(others), last=last)
    return None, ""


# What an entry of a race came to, from the fold of its run.


def finish_entry(race: Race, entry: RaceEntry, run: RunDir, fold: RunState, seconds: float) -> None:
    """The entry with what its run came to: figures where it completed, the cause where it failed."""
    outcome = run.outcome()
    states = {COMPLETED: COMPLETED, STOPPED: STOPPED, RUNNING: STOPPED}  # running: whoever raced has left it
    entry.state = states.get(outcome, FAILED)
    problems = problems_of(run, fold, outcome)
    told = [problem for problem in problems if problem.severity == "info"]
    entry.seen = {problem.code: problem.message for problem in told}
    entry.phrases |= {
        problem.message: PhraseSource(problem.templates["message"], problem.arguments.get("message", {}))
        for problem in told
        if "message" in problem.templates
    }
    if fold.verified is not None:
        said = verified_text(fold.verified)
        entry.verified, entry.verified_outcome = str(said), fold.verified.outcome
        entry.phrases |= {str(said): PhraseSource(said.template, said.plain_arguments())}
    if entry.state == COMPLETED:
        entry.measured = _measure_entry(race, fold, seconds)
    elif entry.state == FAILED:
        errors = [problem for problem in problems if problem.severity == "error"]
        entry.problem = errors[0] if errors else failed_problem(run)


def _measure_entry(race: Race, fold: RunState, seconds: float) -> EntryMeasurement:
    steps = fold.column("step")
    late = steps > race.warm_up_steps
    times, samples = fold.column("step_s")[late], fold.column("samples")[late]
    losses: list[float | None] = [None] * race.steps
    for step, loss in zip(steps.astype(int).tolist(), fold.column("loss").tolist(), strict=True):
        if 1 <= step <= race.steps and math.isfinite(loss):
            losses[step - 1] = loss
    with_both = np.isfinite(times) & np.isfinite(samples) & (times > 0)
    rates = (samples[with_both] / times[with_both]).tolist()
    sent = [sum(by_name.values()) for by_name in fold.comm.values()]
    return EntryMeasurement(
        step_s=times[np.isfinite(times)].tolist(),
        samples_per_s=statistics.median(rates) if rates else None,
        peak_bytes=[device.peak_bytes for device in fold.devices.values()],
        sent_bytes=sum(sent) if sent else None,
        losses=losses,
        seconds=seconds,
    )
