"""The line above the plan's table that says of which race the measured figures below its predictions are."""

from __future__ import annotations

from rankdeck.base.phrases import marked
from rankdeck.run import race as races
from rankdeck_app.language import tr
from rankdeck_app.state.draft_race import DraftRace
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
