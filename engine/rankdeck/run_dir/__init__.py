"""Create a run's directory, append events to it, read them back and find runs.

Other programs import this package. Read directory.py first.
"""

from rankdeck.run_dir.creation import add_attempt, check_can_hold_runs, create_run_dir
from rankdeck.run_dir.directory import ORIGIN_FILE, OUTCOMES, ExitRecord, RunDir, RunOrigin, final_path, slug
from rankdeck.run_dir.event_files import EventWriter, events_from_end, first_events, parse_attempt
from rankdeck.run_dir.event_reader import CLOCKS_FILE, ClockOffsets, Cursor, EventReader, LineCounts
from rankdeck.run_dir.labels import Labels, labels_stamp, read_labels, write_labels
from rankdeck.run_dir.listing import (
    FIRST_STEPS_KEY,
    RaceDir,
    add_to_index,
    create_race,
    default_runs_folder,
    find_foreign_entry,
    find_race,
    find_run,
    is_entry,
    is_race,
    is_run,
    list_folder,
    list_races,
    list_runs,
    runs_folder,
    write_request,
)
from rankdeck.run_dir.pending_run import remove_unless_started

__all__ = [
    "CLOCKS_FILE",
    "FIRST_STEPS_KEY",
    "ORIGIN_FILE",
    "OUTCOMES",
    "ClockOffsets",
    "Cursor",
    "EventReader",
    "EventWriter",
    "ExitRecord",
    "Labels",
    "LineCounts",
    "RaceDir",
    "RunDir",
    "RunOrigin",
    "add_attempt",
    "add_to_index",
    "check_can_hold_runs",
    "create_race",
    "create_run_dir",
    "default_runs_folder",
    "events_from_end",
    "final_path",
    "find_foreign_entry",
    "find_race",
    "find_run",
    "first_events",
    "is_entry",
    "is_race",
    "is_run",
    "labels_stamp",
    "list_folder",
    "list_races",
    "list_runs",
    "parse_attempt",
    "read_labels",
    "remove_unless_started",
    "runs_folder",
    "slug",
    "write_labels",
    "write_request",
]
