"""The directory of a run: create it, append events to it, read them back, find runs.

Other programs import it. Read directory.py first.
"""

from rankdeck.rundir.creating import add_attempt, check_can_hold_runs, create
from rankdeck.rundir.directory import ORIGIN, OUTCOMES, End, HostedRun, RunDir, final_path, slug
from rankdeck.rundir.labels import Labels, labels_stamp, read_labels, write_labels
from rankdeck.rundir.lines import EventWriter, attempt_of, events_from_end, first_events
from rankdeck.rundir.listing import (
    FIRST_STEPS,
    RaceDir,
    create_race,
    default_runs_folder,
    enter_in_index,
    find_race,
    find_run,
    foreign_entry,
    is_entry,
    is_race,
    is_run,
    list_folder,
    list_races,
    list_runs,
    put_request,
    runs_folder,
)
from rankdeck.rundir.reading import CLOCKS, Clocks, Cursor, EventReader, LineCounts
from rankdeck.rundir.unbegun import removed_unless_begun

__all__ = [
    "CLOCKS",
    "FIRST_STEPS",
    "ORIGIN",
    "OUTCOMES",
    "Clocks",
    "Cursor",
    "End",
    "EventReader",
    "EventWriter",
    "HostedRun",
    "Labels",
    "LineCounts",
    "RaceDir",
    "RunDir",
    "add_attempt",
    "attempt_of",
    "check_can_hold_runs",
    "create",
    "create_race",
    "default_runs_folder",
    "enter_in_index",
    "events_from_end",
    "final_path",
    "find_race",
    "find_run",
    "first_events",
    "foreign_entry",
    "is_entry",
    "is_race",
    "is_run",
    "labels_stamp",
    "list_folder",
    "list_races",
    "list_runs",
    "put_request",
    "read_labels",
    "removed_unless_begun",
    "runs_folder",
    "slug",
    "write_labels",
]
