"""Rules about a script that resumes training from a file without loading all of the state."""

from __future__ import annotations

from rankdeck import events
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.findings.anomaly_rules import AnomalyRow, Report, anomaly_rules, number_of


def _names(event: events.Anomaly) -> tuple[str, str, str]:
    """Return (name of the optimizer or scheduler, file, position in the training run, such as "step 120")."""
    name, file, key = [*event.names, "", "", ""][:3]
    counter = number_of(event, "counter")
    place = phrase("{key} {counter}", key=key or phrase("step"), counter=counter)
    return name, file or phrase("the file"), place


def _resume_without_optimizer(event: events.Anomaly) -> Report:
    name, file, place = _names(event)
    return (
        phrase(
            "Training resumes at {place} without the optimizer's state: {name}'s moments start at 0.",
            place=place,
            name=name,
        ),
        phrase("weights from {file}; {name} had no state before its first step", file=file, name=name),
        # The file has the state, so only the call is missing.
        phrase(
            "Call optimizer.load_state_dict with the optimizer's state in {file}: on the optimizer that "
            "the loop steps, and after the last statement that creates it.",
            file=file,
        )
        if event.numbers.get("saved")
        else phrase(
            "Save optimizer.state_dict() in the checkpoint too, and load it with optimizer.load_state_dict "
            "before the first step."
        ),
    )


def _resume_without_scheduler(event: events.Anomaly) -> Report:
    name, file, place = _names(event)
    return (
        phrase("Training resumes at {place}, but {name} starts its schedule again.", place=place, name=name),
        phrase("weights from {file}; {name} had taken no step of its schedule yet", file=file, name=name),
        # As above: nothing else has to be saved.
        phrase("Call scheduler.load_state_dict with the scheduler's state in {file}.", file=file)
        if event.numbers.get("saved")
        else phrase(
            "Save scheduler.state_dict() in the checkpoint too, and load it with scheduler.load_state_dict "
            "before the first step."
        ),
    )


_ROWS: tuple[AnomalyRow, ...] = (
    ("resume-without-optimizer", ("resume-without-optimizer",), _resume_without_optimizer),
    ("resume-without-scheduler", ("resume-without-scheduler",), _resume_without_scheduler),
)

RULES = anomaly_rules(_ROWS)
