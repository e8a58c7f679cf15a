"""What is said of races above the plan's table: whose figures are shown, and how long a race takes."""

from __future__ import annotations

from rankdeck.base.phrases import marked
from rankdeck.run import race as races
from rankdeck.run.bounds import RACE_STEPS
from rankdeck.run.plan_lines import FITS, TIGHT
from rankdeck.run.race_time import expected_text
from rankdeck_app.language import spoken, tr
from rankdeck_app.state.draft_race import DraftRace
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.widgets.time_words import age_words

_STOPPED = {
    races.STOPPED: marked(
        "Below each prediction: measured by {race}, {age}, {where}; it is stopped, {done} of {count} raced."
    ),
    races.LOST: marked(
        "Below each prediction: measured by {race}, {age}, {where}; it is lost, {done} of {count} raced."
    ),
}


def race_words(raced: DraftRace, now_s: float) -> str:
    """Whose figures stand below the predictions, and how old they are; "" where there are none."""
    race = raced.race
    if race is None:
        return ""
    where = tr("in rehearsal, on this CPU") if race.is_rehearsal else tr("on GPUs (memory of live tensors)")
    done, count = race.num_raced, len(race.field)
    if raced.is_running:
        return tr(
            "{race} goes on: {done} of {count} raced. Below each prediction: measured {where}.",
            race=race.title,
            done=done,
            count=count,
            where=where,
        )
    age = age_words(max(0.0, now_s - (race.ended or race.began)))
    values = {"race": race.title, "age": age, "where": where}
    if race.outcome in _STOPPED:
        return tr(_STOPPED[race.outcome], done=done, count=count, **values)
    return tr("Below each prediction: measured by {race}, {age}, {where}.", **values)


def race_text(plan: DraftPlan) -> str:
    """What the button says that races: also how long that takes, once all answers are there."""
    raced = [line for line in plan.lines if line.verdict in (FITS, TIGHT)]
    if not plan.is_complete or not raced:
        return tr("Race What Fits")
    return tr("Race What Fits ({time})", time=spoken(expected_text(raced, RACE_STEPS)))
